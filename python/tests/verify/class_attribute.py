"""A class counts in an attribute of its own."""

from common import KEPT, Task, say

import holdfast.torch as hf


class Meter:
    total = 0.0


task = Task()
state = hf.State(task.model, task.optimizer)
if KEPT:
    run = state.vars(total=0.0)
    for x, y in state.steps(task.loader):
        run.total += task.learn(x, y)
    say(f"total {run.total:.4f}")
else:
    for x, y in state.steps(task.loader):
        Meter.total += task.learn(x, y)
    say(f"total {Meter.total:.4f}")
