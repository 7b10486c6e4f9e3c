"""Make the imports and first uses that cost a process time, in a spare while it waits."""

from __future__ import annotations

from torch.nn import functional


def warm_up() -> None:
    """Make a tiny step. Draws nothing from random generators and starts no process."""
    import torch.distributed.tensor
    import torch.utils.data

    weight = torch.zeros((4, 4), requires_grad=True)
    for make in (torch.optim.AdamW, torch.optim.SGD):
        optimizer = make([weight], lr=0.0)
        loss = functional.cross_entropy(
            functional.relu(functional.linear(torch.zeros((2, 4)), weight)), torch.tensor([0, 1])
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
