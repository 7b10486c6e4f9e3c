"""Two trainings whose data are drawn with NumPy's generator: mindspore_noise.py [kill] [seed].

Nothing of Holdfast is in this program. With `seed`, each rank has a MindSpore seed of its own, and
the kill comes in the second training. Without, only Python and NumPy have a seed, and the kill
comes in the very first step.
"""

# ruff: noqa: E402
from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK_ID"])  # Set by msrun before the import of MindSpore.

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train import Callback, Model, RunContext

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
seeded = "seed" in sys.argv
if seeded:
    ms.set_seed(3 + get_rank())
else:
    random.seed(11)
    np.random.seed(11 + get_rank())
fixed = np.random.default_rng(5)
samples = fixed.standard_normal((320, 16)).astype(np.float32)
labels = fixed.integers(0, 5, 320).astype(np.int32)


def change(x: np.ndarray) -> np.ndarray:
    return (x + np.random.standard_normal(16) * 0.1).astype(np.float32)


class Death(Callback):  # type: ignore[misc]
    """Counts calls, epochs and steps, records the labels, and kills a process."""

    def __init__(self) -> None:
        super().__init__()
        self.call = self.epochs = self.steps = 0
        self.labels: list[list[int]] = []

    def on_train_begin(self, run_context: RunContext) -> None:
        self.call += 1

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        self.epochs += 1

    def on_train_step_begin(self, run_context: RunContext) -> None:
        self.steps += 1
        if not seeded and self.steps == 1:
            self.die()

    def on_train_step_end(self, run_context: RunContext) -> None:
        p = run_context.original_args()
        self.labels.append(p.train_dataset_element[1].asnumpy().tolist())
        if seeded and (self.call, p.cur_step_num) == (2, 13):
            self.die()

    def die(self) -> None:
        mine = os.readlink("/proc/self/fd/1")  # Not that of a spare, which rehearses this.
        if "kill" not in sys.argv or not mine.endswith("worker_1.log") or Path("killed").exists():
            return
        end = time.monotonic() + 60
        logs = [Path(f"logs/spare_{i}.log") for i in range(2)]
        while not all("waits for a place" in log.read_text() for log in logs):
            assert time.monotonic() < end
            time.sleep(0.01)
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


size = int(os.environ["RANK_SIZE"])
assert (rank, str(rank), size) == (get_rank(), os.environ["DEVICE_ID"], get_group_size())
mine = samples[rank::size], labels[rank::size]
data = ds.NumpySlicesDataset(mine, ["x", "y"])  # The order depends on the data's seed.
data = data.map(change, "x", num_parallel_workers=1).batch(16)
network = nn.Dense(16, 5, "zeros", "zeros")
optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
model, death = Model(network, nn.CrossEntropyLoss(), optimizer), Death()
for _ in range(2):
    model.train(2, data, callbacks=[death], dataset_sink_mode=False)
assert (death.call, death.epochs, death.steps) == (2, 4, 40), death.steps
# As in MindSpore: each call has another order, unless there is a seed.
assert (death.labels[:20] == death.labels[20:]) is seeded, death.labels[::20]
if not seeded:  # Nothing but the program draws from this generator.
    assert random.random() == random.Random(11).random()
ms.save_checkpoint(network, f"final-{get_rank()}.ckpt")
