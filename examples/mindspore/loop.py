"""A training loop written by hand, as in MindSpore's tutorials. `loop.diff` has State keep it."""

import os

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init

ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
ms.set_seed(1)

data = ds.MnistDataset(os.environ["DATA_PATH"], num_shards=get_group_size(), shard_id=get_rank())
data = data.map(ds.vision.Rescale(1.0 / 255.0, 0), "image")
data = data.map(ds.transforms.TypeCast(ms.int32), "label").batch(32)

network = nn.SequentialCell(nn.Flatten(), nn.Dense(784, 64), nn.ReLU(), nn.Dense(64, 10))
optimizer = nn.Adam(network.trainable_params(), 1e-3)
loss_of = nn.CrossEntropyLoss()
gradients = ms.value_and_grad(
    lambda image, label: loss_of(network(image), label), None, optimizer.parameters
)
reducer = nn.DistributedGradReducer(optimizer.parameters)

for epoch in range(3):
    total = 0.0
    for image, label in data:
        loss, grads = gradients(image, label)
        optimizer(reducer(grads))
        total += float(loss.asnumpy())
    print(f"epoch {epoch}, loss {total / data.get_dataset_size():.4f}", flush=True)
ms.save_checkpoint(network, f"network-{get_rank()}.ckpt")
