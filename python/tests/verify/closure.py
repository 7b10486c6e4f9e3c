"""The learning rate follows a counter in a closure."""

from collections.abc import Callable

from common import KEPT, Task

import holdfast.torch as hf


def make_counter() -> Callable[[], int]:
    n = 0

    def count() -> int:
        nonlocal n
        n += 1
        return n

    return count


task = Task()
state = hf.State(task.model, task.optimizer)
if KEPT:
    run = state.vars(n=0)
    for x, y in state.steps(task.loader):
        run.n += 1
        task.learn(x, y, rate=0.1 / run.n)
else:
    count = make_counter()
    for x, y in state.steps(task.loader):
        task.learn(x, y, rate=0.1 / count())
