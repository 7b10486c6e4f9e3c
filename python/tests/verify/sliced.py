"""enumerate(itertools.islice(state.steps(loader), n)) counts anew in a replacement."""

import itertools

from common import KEPT, Task, say

import holdfast.torch as hf

task = Task()
state = hf.State(task.model, task.optimizer)
done = 0
if KEPT:
    for x, y in state.steps(task.loader):
        task.learn(x, y, rate=0.1 / (state.batch + 1))
        if state.batch + 1 == 6:
            state.stop()
    done = state.n
else:
    for i, (x, y) in enumerate(itertools.islice(state.steps(task.loader), 6)):
        task.learn(x, y, rate=0.1 / (i + 1))
        done = i + 1
say("steps", done)
