"""LeNet as MindSpore's tutorials train it on several processes: callbacks, then eval.

mindspore_lenet.py [kill]; nothing of Holdfast is in it.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, train
from mindspore.common.initializer import Normal
from mindspore.communication import get_group_size, get_rank, init
from mindspore.dataset import transforms, vision


class LeNet5(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120, weight_init=Normal(0.02))
        self.fc2 = nn.Dense(120, 84, weight_init=Normal(0.02))
        self.fc3 = nn.Dense(84, 10, weight_init=Normal(0.02))
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def construct(self, x):  # type: ignore[no-untyped-def]
        x = self.pool(self.relu(self.conv1(x)))
        x = self.flatten(self.pool(self.relu(self.conv2(x))))
        return self.fc3(self.relu(self.fc2(self.relu(self.fc1(x)))))


def create_dataset(sharded: bool) -> ds.Dataset:
    shards = {"num_shards": get_group_size(), "shard_id": get_rank()} if sharded else {}
    data = ds.MnistDataset(os.environ["DATA_PATH"], **shards)
    data = data.map(transforms.TypeCast(ms.int32), "label")
    images = [
        vision.Resize((32, 32), interpolation=vision.Inter.LINEAR),
        vision.Rescale(1 / 0.3081, -0.1307 / 0.3081),
        vision.Rescale(1 / 255.0, 0.0),
        vision.HWC2CHW(),
    ]
    data = data.map(images, "image")
    return data.shuffle(buffer_size=1000).batch(32, drop_remainder=True)


class Die(train.Callback):
    def on_train_step_end(self, run_context: train.RunContext) -> None:
        step = run_context.original_args().cur_step_num
        wanted = "kill" in sys.argv and not Path("killed").exists()
        if wanted and (get_rank(), step) == (0, 7):
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(1)
ms.set_auto_parallel_context(
    parallel_mode="data_parallel", gradients_mean=True, device_num=get_group_size()
)
network = LeNet5()
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.01, momentum=0.9)
keep = train.CheckpointConfig(save_checkpoint_steps=3, keep_checkpoint_max=10)
saved = train.ModelCheckpoint("lenet", f"ckpt_{get_rank()}", keep)
model = train.Model(network, loss, optimizer, metrics={"Accuracy": nn.Accuracy()})
callbacks = [saved, train.LossMonitor(5), train.TimeMonitor(5), Die()]
model.train(2, create_dataset(sharded=True), callbacks=callbacks, dataset_sink_mode=True)
print("ACCURACY", model.eval(create_dataset(sharded=False))["Accuracy"], flush=True)
ms.save_checkpoint(network, f"final-{get_rank()}.ckpt")
