"""A confusion matrix of 100 x 100 in NumPy."""

import numpy as np
from common import KEPT, Task, say

import holdfast.torch as hf

task = Task()
state = hf.State(task.model, task.optimizer)
matrix = np.zeros((100, 100), np.int64)
if KEPT:
    run = state.vars(matrix=matrix)
    matrix = run.matrix
for x, y in state.steps(task.loader):
    task.learn(x, y)
    guess = task.model.module(x).argmax(1)
    if KEPT:
        np.add.at(run.matrix, (y.numpy(), guess.numpy()), 1)
    else:
        np.add.at(matrix, (y.numpy(), guess.numpy()), 1)
say("samples", (run.matrix if KEPT else matrix).sum())
