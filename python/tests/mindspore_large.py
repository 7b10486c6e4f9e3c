"""Callbacks that hold large things, a source that draws, files that are written besides.

mindspore_large.py [kill]: rank 1 kills itself in the first call of Model.fit, rank 0 in the second.
Nothing of Holdfast is in this program.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, train
from mindspore.communication import get_group_size, get_rank, init

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
ms.set_seed(3)
rank, size = get_rank(), get_group_size()
fixed = np.random.default_rng(5)
samples = fixed.standard_normal((160, 16)).astype(np.float32)
labels = (samples[:, :5] + fixed.standard_normal((160, 5))).argmax(1).astype(np.int32)


class Source:
    """A data source with a generator of its own."""

    def __init__(self) -> None:
        self.own = np.random.default_rng(rank)

    def __getitem__(self, i: int) -> Any:
        return (samples[i] + 0.1 * self.own.standard_normal(16)).astype(np.float32), labels[i]

    def __len__(self) -> int:
        return len(samples)


def die(which: int, call: int, step: int) -> None:
    mark = Path(f"killed-{which}")
    if "kill" not in sys.argv or (rank, len(ended)) != (which, call) or mark.exists():
        return
    logs, end = [Path(f"logs/spare_{i}.log") for i in range(2)], time.monotonic() + 60
    # Wait until the spares have rehearsed.
    while which and not all("waits for a place" in log.read_text() for log in logs):
        assert time.monotonic() < end
        time.sleep(0.01)
    mark.touch()
    os.kill(os.getpid(), signal.SIGKILL)


class Best(train.Callback):  # type: ignore[misc]
    """Keeps the best weights, and a history that grows beyond what a step can carry."""

    def __init__(self) -> None:
        super().__init__()
        self.least, self.weights, self.long = 1e9, {}, []
        self.draw, self.steps = np.random.RandomState(1), []

    def on_train_step_end(self, context: train.RunContext) -> None:
        p = context.original_args()
        loss = float(p.net_outputs.asnumpy())
        self.steps.append(p.cur_step_num)
        self.long.extend(self.draw.standard_normal(800).tolist())
        if loss < self.least:
            self.least = loss
            self.weights = {w.name: w.asnumpy().copy() for w in network.get_parameters()}
        for place in ((1, 0, 25), (0, 1, 15)):
            if p.cur_step_num == place[2]:
                die(*place)


ended: list[int] = []  # Calls that have ended; the program's own list.
data = ds.GeneratorDataset(Source(), ["x", "y"], num_shards=size, shard_id=rank).batch(8)
held_out = ds.NumpySlicesDataset((samples, labels), ["x", "y"], shuffle=False).batch(32)
network = nn.SequentialCell(nn.Dense(16, 1200), nn.ReLU(), nn.Dense(1200, 5))
optimizer = nn.Momentum(network.trainable_params(), 0.3, 0.9)
model = train.Model(network, nn.CrossEntropyLoss(), optimizer, {"loss"})
best = Best()
for call in range(2):
    stop = train.EarlyStopping("eval_loss", patience=9 - 6 * call, restore_best_weights=True)
    keep = train.CheckpointConfig(3, keep_checkpoint_max=99, async_save=True)
    saved = train.ModelCheckpoint(f"call{call}", f"out-{rank}", keep)
    model.fit(4, data, held_out, callbacks=[saved, best, stop], dataset_sink_mode=False)
    ms.save_checkpoint(network, f"between-{call}-{rank}.ckpt")
    ended.append(call)
numbers = [sum(best.steps), sum(best.long), len(best.long), best.least]
numbers += [*best.draw.standard_normal(2)]
final = [ms.Parameter(ms.Tensor(v), f"best.{k}") for k, v in best.weights.items()]
final += [*network.get_parameters(), ms.Parameter(ms.Tensor(np.array(numbers)), "numbers")]
ms.save_checkpoint([{"name": p.name, "data": p} for p in final], f"final-{rank}.ckpt")
