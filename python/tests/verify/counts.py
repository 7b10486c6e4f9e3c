"""A list of a thousand counts that is changed in place."""

from common import KEPT, Task, say

import holdfast.torch as hf

task = Task()
state = hf.State(task.model, task.optimizer)
if KEPT:
    run = state.vars(counts=[0] * 1000)
    for x, y in state.steps(task.loader):
        task.learn(x, y)
        for label in y.tolist():
            run.counts[label] += 1
    say("counts", run.counts[:4])
else:
    counts = [0] * 1000
    for x, y in state.steps(task.loader):
        task.learn(x, y)
        for label in y.tolist():
            counts[label] += 1
    say("counts", counts[:4])
