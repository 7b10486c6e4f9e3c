"""Collectives by hand as MindSpore's tutorials use them: mindspore_groups.py [kill] [pynative].

It uses the world, a smaller group, and gradients summed by ops.AllReduce, and nothing of Holdfast.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.communication import (
    create_group,
    get_group_rank_from_world_rank,
    get_group_size,
    get_rank,
    get_world_rank_from_group_rank,
    init,
)

ms.set_context(mode=ms.PYNATIVE_MODE if "pynative" in sys.argv else ms.GRAPH_MODE)
init()
ms.set_seed(1)
rank, size = get_rank(), get_group_size()


class Sum(nn.Cell):
    def __init__(self, **group: str) -> None:
        super().__init__()
        self.all_reduce = ops.AllReduce(ops.ReduceOp.SUM, **group)

    def construct(self, x):  # type: ignore[no-untyped-def]
        return self.all_reduce(x)


print("SUM", Sum()(Tensor([float(rank + 1)], ms.float32)).asnumpy().tolist(), flush=True)
if rank in (0, 1):
    create_group("0-1", [0, 1])
    total = Sum(group="0-1")(Tensor([float(rank + 1)], ms.float32)).asnumpy().tolist()
    places = [get_world_rank_from_group_rank("0-1", 1), get_group_rank_from_world_rank(1, "0-1")]
    print("PART", total, get_group_size("0-1"), places, flush=True)
print("GATHER", ops.AllGather()(Tensor([[float(rank)]], ms.float32)).asnumpy().tolist(), flush=True)
first = ops.Broadcast(0)((Tensor([float(rank + 7)], ms.float32),))[0]
print("BROADCAST", first.asnumpy().tolist(), flush=True)

network = nn.SequentialCell(nn.Dense(16, 8), nn.ReLU(), nn.Dense(8, 1))
loss_fn = nn.MSELoss()
optimizer = nn.Adam(network.trainable_params(), 1e-2)
all_reduce = ops.AllReduce()


def forward(x, y):  # type: ignore[no-untyped-def]
    return loss_fn(network(x), y)


gradients = ms.value_and_grad(forward, None, optimizer.parameters)
draw = np.random.default_rng(rank)
for step in range(20):
    inputs = Tensor(draw.random((8, 16)), ms.float32)
    loss, found = gradients(inputs, inputs.sum(1, keepdims=True))
    optimizer(tuple(all_reduce(gradient) / size for gradient in found))
    if "kill" in sys.argv and (rank, step) == (2, 7) and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
ms.save_checkpoint(network, f"final-{rank}.ckpt")
