"""A helper module counts samples in a global."""

import helper
from common import KEPT, Task, say

import holdfast.torch as hf

task = Task()
state = hf.State(task.model, task.optimizer)
if KEPT:
    run = state.vars(seen=0)
    for x, y in state.steps(task.loader):
        task.learn(x, y)
        run.seen += len(x)
    say("seen", run.seen)
else:
    for x, y in state.steps(task.loader):
        task.learn(x, y)
        helper.see(len(x))
    say("seen", helper.seen)
