"""Pay in a spare, while it waits, for what a process pays once: imports and first uses."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def warm_up() -> None:
    """Make a tiny step. Draws nothing from random generators and starts no process."""
    import torch.distributed.tensor
    import torch.utils.data  # noqa: F401

    weight = torch.zeros((4, 4), requires_grad=True)
    for make in (torch.optim.AdamW, torch.optim.SGD):
        optimizer = make([weight], lr=0.0)
        loss = F.cross_entropy(F.relu(F.linear(torch.zeros((2, 4)), weight)), torch.tensor([0, 1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
