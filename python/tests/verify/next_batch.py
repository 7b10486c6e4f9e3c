"""An own loop whose next batch is drawn at the end of a step, as nanoGPT's is."""

import torch
from common import KEPT, Task

import holdfast.torch as hf


def get_batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(4, 8), torch.randint(0, 4, (4,))


task = Task()
state = hf.State(task.model, task.optimizer)
if KEPT:
    while state.n < 8:
        with state.step():
            x, y = get_batch()
            task.learn(x, y)
else:
    x, y = get_batch()
    while state.n < 8:
        with state.step():
            task.learn(x, y)
            x, y = get_batch()
