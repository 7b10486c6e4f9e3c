"""A training whose data are drawn with NumPy's generator: mindspore_noise.py [kill] [ready] [seed].

Nothing of Holdfast is in it. `ready`: killed when the spare is; `seed`: each rank has its own.
"""

# ruff: noqa: E402
from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

rank = int(os.environ["RANK_ID"])  # Of scripts that ask MindSpore's msrun, before the import.

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init
from mindspore.train import Callback, Model, RunContext

ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
if "seed" in sys.argv:
    ms.set_seed(3 + get_rank())
    noise = 0.1
else:
    noise = 0.0  # It could not be the same in two runs; the order of samples is.
fixed = np.random.default_rng(5)
samples = fixed.standard_normal((320, 16)).astype(np.float32)
labels = fixed.integers(0, 5, 320).astype(np.int32)


def change(x: np.ndarray) -> np.ndarray:
    return (x + np.random.standard_normal(16) * noise).astype(np.float32)


class Death(Callback):  # type: ignore[misc]
    def step_end(self, run_context: RunContext) -> None:
        step = run_context.original_args().cur_step_num
        if "kill" not in sys.argv or (get_rank(), step) != (1, 13) or Path("killed").exists():
            return
        end = time.monotonic() + 60
        log = Path("logs/spare_0.log")
        while "ready" in sys.argv and "waits for a place" not in log.read_text():
            assert time.monotonic() < end
            time.sleep(0.01)
        Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)


size = int(os.environ["RANK_SIZE"])
assert (rank, str(rank), size) == (get_rank(), os.environ["DEVICE_ID"], get_group_size())
data = ds.NumpySlicesDataset((samples, labels), ["x", "y"], num_shards=size, shard_id=rank)
data = data.map(change, "x", num_parallel_workers=1).batch(16)
network = nn.Dense(16, 5, "zeros", "zeros")
optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
Model(network, nn.CrossEntropyLoss(), optimizer).train(
    4, data, callbacks=[Death()], dataset_sink_mode=False
)
ms.save_checkpoint(network, f"final-{get_rank()}.ckpt")
