"""Train, add something up over the ranks after it, and let rank 0 die then.

mindspore_late.py calm|kill. Nothing of Holdfast is in this program.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, ops, train
from mindspore.communication import get_group_size, get_rank, init
from mindspore.dataset import transforms, vision


class Sum(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.all_reduce = ops.AllReduce()

    def construct(self, x):  # type: ignore[no-untyped-def]
        return self.all_reduce(x)


ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(1)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
data = ds.MnistDataset(os.environ["DATA_PATH"], num_shards=get_group_size(), shard_id=get_rank())
data = data.map(transforms.TypeCast(ms.int32), "label")
data = data.map([vision.Rescale(1 / 255.0, 0.0), vision.HWC2CHW()], "image").batch(32)
network = nn.SequentialCell(nn.Flatten(), nn.Dense(28 * 28, 10))
optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.05, momentum=0.9)
model = train.Model(network, nn.CrossEntropyLoss(), optimizer)
model.train(1, data)
print("LATE", Sum()(ms.Tensor([1.0])).asnumpy(), flush=True)
if "kill" in sys.argv and get_rank() == 0 and not Path("killed").exists():
    Path("killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
ms.save_checkpoint(model.train_network, f"final-{get_rank()}.ckpt")
