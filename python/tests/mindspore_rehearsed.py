"""A MindSpore program whose kind is its argument: some keep their part of the contract."""

from __future__ import annotations

import sys
import time

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, train
from mindspore.communication import get_group_size, get_rank, init

import holdfast.mindspore as hf

KIND = sys.argv[1]
ms.set_context(mode=ms.PYNATIVE_MODE if KIND in ("state", "loop") else ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
ms.set_seed(1)


class Source:
    """Samples. Under Model.train a replacement reads all of them again, so it counts the same."""

    calls = 0

    def __getitem__(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        self.calls += KIND == "model"
        x = np.random.default_rng(i).standard_normal(16).astype(np.float32)
        return x * (1 + self.calls % 7), np.int32(i % 4)

    def __len__(self) -> int:
        return 512


class Average(train.Callback):
    """Of the weights, which it changes, too. Its counts are attributes, so they are kept."""

    def __init__(self) -> None:
        super().__init__()
        self.count, self.of_last = 0, {}
        self.large, self.began = np.zeros(15_000), 0.0  # More than goes into the state itself.

    def on_train_step_begin(self, run_context: train.RunContext) -> None:
        self.began = time.time()

    def on_train_step_end(self, run_context: train.RunContext) -> None:
        global STEPS
        STEPS += 1
        self.count += 1
        self.large = self.large + 1
        self.of_last = {"loss": float(run_context.original_args().net_outputs.asnumpy())}
        weight = network.trainable_params()[0]
        by = STEPS if KIND == "callback" else self.count
        ms.ops.assign(weight, weight * (1 - 1e-4 / by))
        time.sleep(0.02)


class Saving(train.ModelCheckpoint):
    """A class of the program's own, which the rank alone is to let write."""


STEPS = 0
more = [nn.Dropout(p=0.5)] if KIND == "dropout" else []
network = nn.SequentialCell(nn.Dense(16, 32), nn.BatchNorm1d(32), nn.ReLU(), *more, nn.Dense(32, 4))
optimizer = nn.Momentum(network.trainable_params(), 1e-3, 0.9)
shard = {"num_shards": get_group_size(), "shard_id": get_rank()}
data = ds.GeneratorDataset(Source(), ["x", "y"], shuffle=True, num_parallel_workers=1, **shard)
data = data.batch(8)
loss_fn = nn.CrossEntropyLoss()
if KIND in ("state", "loop"):
    state = hf.State(network, optimizer)
    run = state.vars(total=0.0)
    grad_fn = ms.value_and_grad(lambda x, y: loss_fn(network(x), y), None, optimizer.parameters)
    reducer = nn.DistributedGradReducer(optimizer.parameters)
    for x, y in state.steps(data, epochs=10_000):
        STEPS += 1
        loss, gradients = grad_fn(x, (y + (STEPS > 2)) % 4 if KIND == "loop" else y)
        optimizer(reducer(gradients))
        run.total += float(loss.asnumpy())
        time.sleep(0.02)
else:
    model = ms.Model(network, loss_fn=loss_fn, optimizer=optimizer)
    keep = train.CheckpointConfig(3, keep_checkpoint_max=2)
    saving = Saving(f"net-{get_rank()}", f"saved/{get_rank()}", keep)
    callbacks = [train.LossMonitor(5), train.TimeMonitor(), saving, Average()]
    model.train(10_000, data, callbacks=callbacks, dataset_sink_mode=False)
