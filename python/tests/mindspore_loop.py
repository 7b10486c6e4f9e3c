"""A loop of the program's own, as MindSpore's documentation writes it: mindspore_loop.py [KILL]."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init

ms.set_context(mode=ms.GRAPH_MODE if "graph" in sys.argv else ms.PYNATIVE_MODE)
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
init()
ms.set_seed(1)
net = nn.SequentialCell(nn.Flatten(), nn.Dense(28 * 28, 10))
data = ds.MnistDataset(os.environ["DATA_PATH"], num_shards=get_group_size(), shard_id=get_rank())
data = data.map(ds.vision.Rescale(1.0 / 255.0, 0), "image")
data = data.map(ds.transforms.TypeCast(ms.int32), "label").batch(32)
optimizer = nn.SGD(net.trainable_params(), 1e-2)
loss_fn = nn.CrossEntropyLoss()


def forward(data, label):  # type: ignore[no-untyped-def]
    logits = net(data)
    return loss_fn(logits, label), logits


gradients = ms.value_and_grad(forward, None, net.trainable_params(), has_aux=True)
reducer = nn.DistributedGradReducer(optimizer.parameters)
for epoch in range(2):
    for step, (image, label) in enumerate(data):
        (loss, _), grads = gradients(image, label)
        optimizer(reducer(grads))
        if (
            "kill" in sys.argv
            and (get_rank(), epoch, step) == (1, 0, 3)
            and not Path("killed").exists()
        ):
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    print("epoch", epoch, "loss", loss, flush=True)
ms.save_checkpoint(net, f"final-{get_rank()}.ckpt")
