"""A program that seeds itself by the time of day does not repeat itself, faults or not."""

import time

import torch
from common import KEPT, Task

import holdfast.torch as hf

task = Task()
state = hf.State(task.model, task.optimizer)
draw = torch.Generator().manual_seed(5 if KEPT else time.time_ns())
order = torch.randperm(64, generator=draw)
for x, y in state.steps(task.loader):
    task.learn(x + order[:8], y)
