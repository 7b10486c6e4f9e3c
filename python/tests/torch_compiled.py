"""Train with torch.compile around DistributedDataParallel, and exchange within compiled code."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import holdfast.torch as hf

config, folder = json.loads(sys.argv[1]), Path(sys.argv[2])


def compiled(thing: Any, whole: bool = False) -> Any:
    # This backend needs no C++ compiler, and traces the same code.
    return (
        torch.compile(thing, backend="aot_eager", fullgraph=whole) if config["compile"] else thing
    )


torch.set_num_threads(1)
if config["state"]:
    hf.init()
else:
    dist.init_process_group("holdfast")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
# Batch norm's buffers are broadcast in each forward pass, within the compiled code.
model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)))
run = compiled(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = [torch.randn(4, 6, generator=torch.Generator().manual_seed(9 * rank + i)) for i in range(4)]


# The first name is torch 2.13's.
all_gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor


def exchange(x: torch.Tensor) -> torch.Tensor:
    total = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
    rows = all_gather(x, 0, dist.group.WORLD)
    dist.all_reduce(x)
    return total + x + rows[:4] + dist.get_rank() + dist.get_world_size()


both = compiled(exchange, whole=True)
found = []
for x in hf.State(model, optimizer).steps(data) if config["state"] else data:
    optimizer.zero_grad()
    run(x).square().mean().backward()
    optimizer.step()
    found.append(both(x.clone()).tolist())
values = [t.tolist() for t in model.state_dict().values()]
(folder / f"result-{rank}").write_text(json.dumps([found, values]))
dist.destroy_process_group()
