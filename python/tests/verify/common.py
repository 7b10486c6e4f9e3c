"""What the programs of this folder share: a small model with its optimizer and data.

Each of them remembers something that State does not hold, and goes wrong after a fault. With the
argument `kept` it is written as it should be.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

import holdfast.torch as hf

KEPT = "kept" in sys.argv[1:]


class Task:
    """A model, and how it learns."""

    def __init__(self, data: Dataset[Any] | None = None) -> None:
        hf.init()
        torch.set_num_threads(1)
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        draw = torch.Generator().manual_seed(2)
        x = torch.randn(64, 8, generator=draw)
        if data is None:
            data = TensorDataset(x, torch.randint(0, 4, (64,), generator=draw))
        self.loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data))

    def learn(self, x: torch.Tensor, y: torch.Tensor, rate: float = 0.01) -> float:
        """Make the step of a batch; return its loss."""
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def say(*words: object) -> None:
    """Print on rank 0."""
    if dist.get_rank() == 0:
        print(*words, flush=True)
