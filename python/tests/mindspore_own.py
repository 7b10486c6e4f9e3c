"""A program that begins from its own last checkpoint, with objects and sums of its own; PyNative.

mindspore_own.py [kill]: rank 1 kills itself once. Nothing of Holdfast is in this program.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import amp, nn, ops, train
from mindspore.communication import get_group_size, get_rank, init

ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
ms.set_seed(1)
EPOCHS = 3
rank, size = get_rank(), get_group_size()


class Step(nn.Cell):
    """Adds up the gradients of three steps, with a loss scale that grows."""

    def __init__(self, network: nn.Cell, optimizer: nn.Optimizer) -> None:
        super().__init__()
        self.network, self.optimizer = network, optimizer
        self.grad = ops.value_and_grad(self.scaled, None, optimizer.parameters)
        self.reducer = nn.DistributedGradReducer(optimizer.parameters)
        self.scaler = amp.DynamicLossScaler(scale_value=8.0, scale_factor=2, scale_window=2)
        self.sums: list[ms.Tensor] = []
        self.losses: list[float] = []

    def scaled(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        return self.scaler.scale(self.network(x, y))

    def construct(self, x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
        loss, grads = self.grad(x, y)
        loss, grads = self.scaler.unscale((loss,))[0], self.scaler.unscale(self.reducer(grads))
        self.scaler.adjust(ms.Tensor(True))
        self.sums = [a + b for a, b in zip(self.sums, grads)] if self.sums else list(grads)
        self.losses.append(float(loss.asnumpy()))
        if len(self.losses) % 3 == 0:
            self.optimizer(tuple(self.sums))
            self.sums = []
        return loss


class Meter:
    def __init__(self) -> None:
        self.sum, self.count = 0.0, 0

    def add(self, value: float) -> None:
        self.sum, self.count = self.sum + value, self.count + 1


class Watch(train.Callback):
    """Has objects that count, and state_dict() that says what is kept of them; kills a process."""

    def __init__(self) -> None:
        super().__init__()
        self.all, self.by_epoch = Meter(), {0: [Meter()]}

    def state_dict(self) -> dict[str, Any]:
        return {"all": vars(self.all), "of": {e: vars(m[0]) for e, m in self.by_epoch.items()}}

    def load_state_dict(self, held: dict[str, Any]) -> None:
        vars(self.all).update(held["all"])
        self.by_epoch = {epoch: [Meter()] for epoch in held["of"]}
        for epoch, values in held["of"].items():
            vars(self.by_epoch[epoch][0]).update(values)

    def on_train_step_end(self, run_context: train.RunContext) -> None:
        p = run_context.original_args()
        loss = float(p.net_outputs.asnumpy())
        self.all.add(loss)
        self.by_epoch.setdefault(p.cur_epoch_num, [Meter()])[0].add(loss)
        killed = Path("killed")
        if "kill" in sys.argv and rank == 1 and p.cur_step_num == 15 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


draw = np.random.default_rng(5)
samples = draw.standard_normal((112, 16)).astype(np.float32)[rank::size]
labels = draw.integers(0, 5, 112).astype(np.int32)[rank::size]
data = ds.NumpySlicesDataset((samples, labels), ["x", "y"]).batch(8)
network = nn.Dense(16, 5)
step = Step(
    nn.WithLossCell(network, nn.CrossEntropyLoss()), nn.Adam(network.trainable_params(), 0.01)
)
own = Path(f"out-{rank}")
done = max([int(path.stem.split("-")[1].split("_")[0]) for path in own.glob("*.ckpt")], default=0)
if done:
    ms.load_param_into_net(step, ms.load_checkpoint(str(own / f"n-{done}_7.ckpt")))
saved = train.ModelCheckpoint("n", str(own), train.CheckpointConfig(save_checkpoint_steps=7))
watch = Watch()
train.Model(step).train(EPOCHS - done, data, callbacks=[saved, watch], dataset_sink_mode=False)
meters = [watch.all, *(meter for several in watch.by_epoch.values() for meter in several)]
numbers = [*step.losses, *(x for meter in meters for x in (meter.sum, meter.count))]
numbers += [step.scaler.scale_value.asnumpy(), step.scaler.counter.asnumpy()]
held = [*step.get_parameters(), ms.Tensor(np.array(numbers, np.float64)), *step.sums]
ms.save_checkpoint([{"name": f"v{i}", "data": v} for i, v in enumerate(held)], f"final-{rank}.ckpt")
