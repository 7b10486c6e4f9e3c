"""A data-parallel MindSpore program whose secure channel is set as document 001 does it.

mindspore_secure.py FILE: the named arguments of set_ps_context(), as JSON; {}: in the clear.
Nothing of Holdfast is in this program.
"""

from __future__ import annotations

import json
import os
import sys

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, train
from mindspore.communication import get_rank, init

with open(sys.argv[1]) as file:
    config = json.load(file)
ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend")
ms.set_ps_context(enable_ssl=bool(config), **config)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
ms.set_seed(1)
rank = get_rank()


class Trace(train.Callback):
    def step_end(self, run_context: train.RunContext) -> None:
        with open(f"pid-{rank}.new", "w") as file:
            file.write(f"{os.getpid()} {run_context.original_args().cur_step_num}")
        os.rename(f"pid-{rank}.new", f"pid-{rank}")


data = ds.MnistDataset(os.environ["DATA_PATH"], num_shards=2, shard_id=rank)
data = data.map([ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()], "image")
data = data.map(ds.transforms.TypeCast(ms.int32), "label").batch(16)
network = nn.SequentialCell(nn.Flatten(), nn.Dense(28 * 28, 10, weight_init="zeros"))
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
model = train.Model(network, loss, nn.Momentum(network.trainable_params(), 0.01, 0.9))
model.train(int(os.environ.get("EPOCHS", "3")), data, callbacks=[Trace()])
ms.save_checkpoint(network, f"last-{rank}.ckpt")
