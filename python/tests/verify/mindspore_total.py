"""A MindSpore loop that adds up its loss in a variable of its own; kept, in state.vars."""

import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.communication import get_group_size, get_rank, init

import holdfast.mindspore as hf

KEPT = "kept" in sys.argv[1:]

ms.set_context(mode=ms.PYNATIVE_MODE)
init()
ms.set_seed(1)
network, loss_of = nn.Dense(8, 4), nn.MSELoss()
optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
reducer = nn.DistributedGradReducer(optimizer.parameters, mean=True, degree=get_group_size())
gradients = ms.value_and_grad(lambda x, y: loss_of(network(x), y), None, optimizer.parameters)
draw = np.random.default_rng(3)
columns = tuple(draw.standard_normal((32, n)).astype(np.float32) for n in (8, 4))
shards = {"num_shards": get_group_size(), "shard_id": get_rank()}
data = ds.NumpySlicesDataset(columns, shuffle=False, **shards).batch(4)
state = hf.State(network, optimizer)
run = state.vars(total=0.0)
total = 0.0
for epoch in state.epochs(2):
    for x, y in state.steps(data):
        loss, grads = gradients(x, y)
        optimizer(reducer(grads))
        if KEPT:
            run.total += float(loss.asnumpy())
        else:
            total += float(loss.asnumpy())
    if get_rank() == 0:
        print(f"epoch {epoch} total {run.total if KEPT else total:.4f}", flush=True)
        ms.save_checkpoint(network, "net.ckpt")
