"""The network of torch_export.py, and what plain PyTorch does with what was exported.

Without Holdfast: export_net.py FILE prints the loss.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Net(nn.Module):
    """Has buffers that are saved and such that are not, a tied parameter, and extra state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 8)
        self.first = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Linear(8, 6, bias=False)
        self.last.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def get_extra_state(self) -> Any:
        return {"shape": [6, 8]}

    def set_extra_state(self, state: Any) -> None:
        assert state == {"shape": [6, 8]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(self.first(self.embed(x)))) * self.scale
        return found


def batch(n: int, rank: int) -> Any:
    draw = torch.Generator().manual_seed(100 * n + rank)
    x = torch.randint(0, 6, (16,), generator=draw)
    return x, (x + 1) % 6


def evaluate(net: nn.Module) -> float:
    net.eval()
    with torch.no_grad():
        x, y = batch(999, 0)
        return functional.cross_entropy(net(x), y).item()


def optimizers(net: nn.Module) -> Any:
    slow = [p for name, p in net.named_parameters() if "bias" in name]
    fast = [p for name, p in net.named_parameters() if "bias" not in name]
    optimizer = torch.optim.AdamW([{"params": fast}, {"params": slow, "lr": 0.001}], lr=0.02)
    return optimizer, torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5], 0.5)


def train(net: nn.Module, optimizer: Any, scheduler: Any, steps: int) -> float:
    """Make some steps as one process, and return the loss."""
    net.train()
    for n in range(steps):
        x, y = batch(500 + n, 0)
        optimizer.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        optimizer.step()
        scheduler.step()
    return evaluate(net)


def main(file: str) -> None:
    torch.set_num_threads(1)
    found = torch.load(file, weights_only=True)
    net = Net()
    optimizer, scheduler = optimizers(net)
    net.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    scheduler.load_state_dict(found["scheduler"])
    print(repr(evaluate(net)), repr(train(net, optimizer, scheduler, 4)))
    assert "holdfast" not in sys.modules


if __name__ == "__main__":
    main(sys.argv[1])
