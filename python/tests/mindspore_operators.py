"""A network with every collective that a script can make: mindspore_operators.py CONFIG.

Nothing of Holdfast is in it. It prints its losses, and kills itself where the configuration says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops, train
from mindspore.communication import create_group, get_group_size, get_rank, init

config: dict[str, Any] = json.loads(sys.argv[1])
ms.set_context(mode=ms.GRAPH_MODE if config["graph"] else ms.PYNATIVE_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
ms.set_seed(1)
rank, size = get_rank(), get_group_size()
create_group("turned", list(reversed(range(size))))
MANY = 70


class Mixed(nn.Cell):  # type: ignore[misc]
    """Operators that depend on each other, and others that do not, all with gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.sum, self.other = ops.AllReduce(), ops.AllReduce(group="turned")
        self.most, self.least = ops.AllReduce(ops.ReduceOp.MAX), ops.AllReduce("min")
        self.gather, self.scatter = ops.AllGather(), ops.ReduceScatter()
        self.first = ops.Broadcast(0)
        self.product = ops.AllReduce("prod")

    def construct(self, x):  # type: ignore[no-untyped-def]
        whole = self.gather(x)
        part = self.scatter(ops.tanh(whole))
        both = self.sum(x) + self.sum(x * x) + self.other(ops.sin(x))  # One is used twice.
        ends = self.most(x) - self.least(x) + self.first((ops.cos(x),))[0]
        product = self.product(ops.stop_gradient(ops.tanh(x[0, 0]) + 2))
        here = ops.AllReduce()(x[0]) * ops.AllReduce()(x[1])  # Made while the graph is.
        return part + 0.1 * both + 0.01 * ends + 0.001 * here / product


class Many(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.many = [ops.AllReduce() for _ in range(MANY)]

    def construct(self, x):  # type: ignore[no-untyped-def]
        total = x.sum()
        for one in self.many:
            total = total + 0.001 * one(x[0, 0])
        return x + 0.001 * total


class Loss(nn.Cell):  # type: ignore[misc]
    """As manual parallel has it: the loss of all ranks, which gradients do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.sum, self.metric = nn.MSELoss(), ops.AllReduce(), ops.AllReduce()
        self.seen = ms.Parameter(ms.Tensor(0.0, ms.float32), name="seen", requires_grad=False)

    def construct(self, x, y):  # type: ignore[no-untyped-def]
        loss = self.sum(self.loss(x, y)) / size
        metric = self.metric(ops.stop_gradient(ops.abs(x - y).mean()))
        return ops.depend(loss, ops.assign(self.seen, metric))


class Watch(train.Callback):  # type: ignore[misc]
    """Prints losses and kills."""

    def on_train_step_end(self, run_context: train.RunContext) -> None:
        p = run_context.original_args()
        print("LOSS", p.cur_step_num, repr(float(p.net_outputs.asnumpy())), flush=True)
        for i, place in enumerate(config["kills"]):
            mark = Path(f"killed-{i}")
            if place == [rank, p.cur_step_num] and not mark.exists():
                while config["spare"] and i == 0 and not self.rehearsed():
                    time.sleep(0.01)
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def rehearsed(self) -> bool:
        return "waits for a place" in Path("logs/spare_0.log").read_text()


draw = np.random.default_rng(rank)
samples = draw.standard_normal((config["steps"] * 8, 6)).astype(np.float32)
data = ds.NumpySlicesDataset((samples, samples[:, :4] ** 2), ["x", "y"], shuffle=False).batch(8)
network = nn.SequentialCell(nn.Dense(6, 4), Mixed(), nn.Dense(4, 4), Mixed(), Many())
optimizer = nn.Momentum(network.trainable_params(), 0.001, 0.9)
model = train.Model(network, Loss(), optimizer)
model.train(1, data, callbacks=[Watch()])
ms.save_checkpoint(model.train_network, f"final-{rank}.ckpt")
