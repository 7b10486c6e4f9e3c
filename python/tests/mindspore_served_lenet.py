"""LeNet as former MindSpore's tutorial of parameter servers trains it.

Nothing of Holdfast is in it. It is started in every role. All workers read the same samples.
"""

from __future__ import annotations

import os

import mindspore as ms
import mindspore.dataset as ds
from mindspore import context, nn, train
from mindspore.common.initializer import Normal
from mindspore.communication import get_rank, init
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


def create_dataset() -> ds.Dataset:
    data = ds.MnistDataset(os.environ["DATA_PATH"], shuffle=False)
    data = data.map(transforms.TypeCast(ms.int32), "label")
    images = [
        vision.Resize((32, 32), interpolation=vision.Inter.LINEAR),
        vision.Rescale(1 / 0.3081, -0.1307 / 0.3081),
        vision.Rescale(1 / 255.0, 0.0),
        vision.HWC2CHW(),
    ]
    data = data.map(images, "image")
    return data.batch(32, drop_remainder=True)


context.set_context(mode=context.GRAPH_MODE, device_target="CPU")
context.set_ps_context(enable_ps=True)
init()
ms.set_seed(1)
network = LeNet5()
network.set_param_ps()
loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
keep = train.CheckpointConfig(save_checkpoint_steps=8, keep_checkpoint_max=10)
saved = train.ModelCheckpoint("lenet", f"ckpt_{get_rank()}", keep)
model = train.Model(network, loss, optimizer, metrics={"Accuracy": nn.Accuracy()})
model.train(2, create_dataset(), callbacks=[saved, train.LossMonitor()], dataset_sink_mode=False)
print("ACCURACY", model.eval(create_dataset())["Accuracy"], flush=True)
ms.save_checkpoint(network, f"final-{get_rank()}.ckpt")
