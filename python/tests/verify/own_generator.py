"""A data set draws from a generator of its own."""

from typing import Any

import numpy as np
import torch
from common import KEPT, Task
from torch.utils.data import Dataset

import holdfast.torch as hf


class Noisy(Dataset[Any]):
    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, i: int) -> Any:
        rng = np.random.default_rng(i) if KEPT else self.rng
        return torch.from_numpy(rng.standard_normal(8, dtype=np.float32)), i % 4


task = Task(Noisy())
state = hf.State(task.model, task.optimizer)
for x, y in state.steps(task.loader):
    task.learn(x, y)
