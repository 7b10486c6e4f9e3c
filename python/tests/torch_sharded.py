"""A program whose sharded snapshots are exported: torch_sharded.py FOLDER [EXPORTED].

It ends when there are two snapshots in FOLDER/snapshots. Rank 0 saves after each step the full
state, as torch puts it together, as FOLDER/own-N. With EXPORTED, it begins with that file and saves
that beginning alone, as FOLDER/begun.
"""

import sys

import holdfast

holdfast.init()  # The scheduler serves in here, and never imports torch.

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from everything_lost import whole  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.nn import functional  # noqa: E402

import holdfast.torch as hf  # noqa: E402

FULL = StateDictOptions(full_state_dict=True)


def plain() -> Any:
    """Return a model no dimension of which two or three ranks share evenly, and its optimizer."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.BatchNorm1d(7), nn.Linear(7, 5, bias=False))
    net.append(nn.Linear(5, 1))  # Of which all ranks but one have nothing.
    return net, torch.optim.AdamW(net.parameters(), lr=0.02)


def sharded(net: nn.Module) -> Any:
    for part in (net[0], net[4]):
        fully_shard(part)
    fully_shard(net)
    return net, torch.optim.AdamW(net.parameters(), lr=0.02)


def begun(file: str) -> Any:
    """Load as docs/snapshots.md has it."""
    found = torch.load(file, weights_only=True)
    net, optimizer = plain()
    net.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    moments = get_optimizer_state_dict(net, optimizer)
    net, optimizer = sharded(net)
    set_optimizer_state_dict(net, optimizer, moments, options=FULL)
    return net, optimizer


def batch(n: int, rank: int) -> Any:
    draw = torch.Generator().manual_seed(100 * n + rank)
    return torch.randn(6, 4, generator=draw), torch.randn(6, 1, generator=draw)


def full(net: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    net.eval()
    with torch.no_grad():
        x, y = batch(999, 0)
        loss = functional.mse_loss(net(x), y).item()
    net.train()
    return {
        "model": get_model_state_dict(net, options=FULL),
        "optimizer": get_optimizer_state_dict(net, optimizer, options=FULL),
        "loss": loss,
    }


def main(folder: Path, exported: str = "") -> None:
    torch.set_num_threads(1)
    hf.init()
    net, optimizer = begun(exported) if exported else sharded(plain()[0])
    state = hf.State(net, optimizer)

    def save(name: str) -> None:
        found = full(net, optimizer)
        if dist.get_rank() == 0:
            torch.save(found, folder / name)

    while not state.stopped and not exported:
        with state.step():
            if len(whole(folder / "snapshots")) >= 2:
                state.stop()
            x, y = batch(state.n, dist.get_rank())
            optimizer.zero_grad()
            functional.mse_loss(net(x), y).backward()
            optimizer.step()
        state.once(save, f"own-{state.n}")
    if exported:
        state.once(save, "begun")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
