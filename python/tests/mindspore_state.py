"""A loop of the program's own, kept by State: mindspore_state.py MODE [RANK,PLACE ...] [WORD ...].

Ranks kill themselves at the places given, one after another. WORD: augment (random crops), stop,
own (a `while` loop with `state.step()`).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.communication import get_group_size, get_rank, init

import holdfast.mindspore as hf

ms.set_context(mode=ms.GRAPH_MODE if sys.argv[1] == "graph" else ms.PYNATIVE_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
rank = get_rank()
ms.set_seed(1 + rank)  # All ranks get rank 0's parameters all the same.


def die(place: str) -> None:
    for i, kill in enumerate(word for word in sys.argv[2:] if "," in word):
        if kill == f"{rank},{place}" and not Path(f"killed-{i}").exists():
            Path(f"killed-{i}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Meter:
    """A class of the program's own. Its state_dict() says what is kept of it."""

    total = 0.0

    def state_dict(self) -> dict[str, float]:
        return {"total": self.total}

    def load_state_dict(self, held: dict[str, float]) -> None:
        self.total = held["total"]


images = [ds.vision.Rescale(1.0 / 255.0, 0)]
if "augment" in sys.argv:
    images.insert(0, ds.vision.RandomCrop(28, padding=2))
data = ds.MnistDataset(os.environ["DATA_PATH"], num_shards=get_group_size(), shard_id=rank)
data = data.map(images, "image").map(ds.transforms.TypeCast(ms.int32), "label").batch(32)
network = nn.SequentialCell(nn.Flatten(), nn.Dense(784, 16), nn.ReLU(), nn.Dense(16, 10))
optimizer = nn.Adam(network.trainable_params(), 1e-2)
loss_fn, meter, total = nn.CrossEntropyLoss(), Meter(), ops.AllReduce()


def forward(image, label):  # type: ignore[no-untyped-def]
    return loss_fn(network(image), label)


gradients = ms.value_and_grad(forward, None, optimizer.parameters)
reducer = nn.DistributedGradReducer(optimizer.parameters)
average = [p.clone() for p in network.trainable_params()]
for p in average:
    p.name = "average." + p.name


def evaluate() -> float:
    die(f"once{state.epoch}")
    found = sum(float(forward(image, label).asnumpy()) for image, label in data)
    return float(total(ms.Tensor([found], ms.float32)).asnumpy()[0])


def train(image: ms.Tensor, label: ms.Tensor) -> None:
    die(f"begin{state.n}")
    loss, grads = gradients(image, label)
    grads = reducer(grads)
    die(f"sum{state.n}")
    optimizer(grads)
    for kept, now in zip(average, network.trainable_params()):
        ops.assign(kept, 0.9 * kept + 0.1 * now)
    run.losses.append(float(loss.asnumpy()))
    run.noise.append(float(np.random.rand()))
    run.table[state.epoch] += run.losses[-1]
    meter.total += run.losses[-1]
    die(f"end{state.n}")


state = hf.State(network, optimizer, average=average, meter=meter)
run = state.vars(best=1e9, losses=[], table=np.zeros((3, 3)), noise=[], first=0.0)
if "own" not in sys.argv or state.n == 0:  # With its own loop, once() has no place before the loop.
    run.first = state.once(evaluate)
if "own" in sys.argv:
    rows = list(data)  # The same rows in all epochs.
    while state.n < 15:
        with state.step():
            train(*rows[state.n % len(rows)])
            if state.n == 9:
                run.best = evaluate()  # Within a step: all ranks make it again after a loss.
else:
    for epoch in state.epochs(3):
        for image, label in state.steps(data):
            train(image, label)
        die(f"between{epoch}")
        run.best = min(run.best, state.once(evaluate))
        ops.assign(optimizer.learning_rate, ms.Tensor(1e-2 / (epoch + 2), ms.float32))
        die(f"after{epoch}")
        if "stop" in sys.argv and (epoch, rank) == (1, 0):
            state.stop()
numbers = [run.first, state.once(evaluate), run.best, meter.total, state.n, state.epoch]
numbers += [*run.losses, *run.noise, *run.table.ravel()]
held = [*network.get_parameters(), *optimizer.get_parameters(), *average]
held.append(ms.Parameter(ms.Tensor(np.array(numbers)), "numbers"))
ms.save_checkpoint([{"name": p.name, "data": p} for p in held], f"final-{rank}.ckpt")
print("STEPS", state.n, flush=True)
