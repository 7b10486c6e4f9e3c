"""A network with every collective that a script can make: mindspore_operators.py CONFIG.

Nothing of Holdfast is in this program. It prints its losses, and kills itself where the
configuration says. The network is small: MindSpore runs small graphs in another order from the
second step on.
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
MANY = 70  # So many operators are made, and the last one is used.


class Reduced(nn.Cell):  # type: ignore[misc]
    """Independent operators, of which some are ready later and one is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.sum, self.other = ops.AllReduce(), ops.AllReduce(group="turned")
        self.most, self.least = ops.AllReduce(ops.ReduceOp.MAX), ops.AllReduce("min")
        self.late = [ops.AllReduce() for _ in range(MANY)][-1]

    def construct(self, x):  # type: ignore[no-untyped-def]
        both = self.sum(ops.sin(ops.cos(ops.tanh(x)))) + self.sum(x) + self.other(ops.exp(x))
        ends = self.most(ops.tanh(ops.sin(x))) - self.least(x) + self.late(ops.cos(x))
        return x + 0.1 * both + 0.01 * ends


class Moved(nn.Cell):  # type: ignore[misc]
    """Operators of the other kinds, and some that are made while the graph is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.gather, self.scatter = ops.AllGather(), ops.ReduceScatter()
        self.first, self.product = ops.Broadcast(0), ops.AllReduce("prod")

    def construct(self, x):  # type: ignore[no-untyped-def]
        part = self.scatter(ops.tanh(ops.cos(self.gather(ops.sin(x)))))
        own = self.scatter(self.gather(x))
        first = self.first((ops.cos(x),))[0]
        product = self.product(ops.stop_gradient(ops.tanh(x[0, 0]) + 2))
        here = ops.AllReduce()(x[0]) * ops.AllReduce()(x[1])
        return part + 0.1 * own + 0.01 * first + 0.001 * here / product


class Loss(nn.Cell):  # type: ignore[misc]
    """The loss of all ranks, as in manual parallel: gradients do not depend on it."""

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
parts = [{"reduced": Reduced, "moved": Moved}[name]() for name in config["parts"]]
network = nn.SequentialCell(nn.Dense(6, 4), *parts)
optimizer = nn.Momentum(network.trainable_params(), 0.001, 0.9)
model = train.Model(network, Loss(), optimizer)
model.train(1, data, callbacks=[Watch()])
ms.save_checkpoint(model.train_network, f"final-{rank}.ckpt")
