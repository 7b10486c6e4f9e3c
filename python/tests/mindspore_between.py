"""What happens between steps: callbacks change and hold things, calls of Model.train follow.

mindspore_between.py [RANK,CALL,STEP,PLACE ...]: which ranks kill themselves where, one after
another. Nothing of Holdfast is in this program.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops, train
from mindspore.communication import get_group_size, get_rank, init

os.environ["MS_ENABLE_GRACEFUL_EXIT"] = "1"  # So each step has an all-reduce of MindSpore's own.
ms.set_context(mode=ms.GRAPH_MODE)
ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
init()
ms.set_seed(1)
rank = get_rank()
ops.AllReduce()(ms.Tensor([1.0]))


def create_dataset(**shards: int) -> ds.Dataset:
    data = ds.MnistDataset(os.environ["DATA_PATH"], **shards)
    data = data.map([ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()], "image")
    return data.map(ds.transforms.TypeCast(ms.int32), "label").batch(32)


def scale(which: int, factor: float) -> None:
    weight = network.trainable_params()[which]
    ops.assign(weight, factor * weight)


class Between(train.Callback):
    """Changes the learning rate, and holds numbers and an average of the parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.best = np.float32(9)
        self.seen = {"steps": 0}
        self.sums = np.zeros(3, np.float32)
        self.last = ms.Tensor([0.0])
        self.average = [p.clone() for p in network.trainable_params()]

    def on_train_begin(self, run_context: train.RunContext) -> None:
        scale(0, 0.9)

    def on_train_epoch_begin(self, run_context: train.RunContext) -> None:
        scale(2, 1.1)

    def on_train_step_begin(self, run_context: train.RunContext) -> None:
        scale(3, 0.99)

    def on_train_step_end(self, run_context: train.RunContext) -> None:
        p = run_context.original_args()
        loss = float(p.net_outputs.asnumpy())
        self.losses.append(loss)
        self.best = min(self.best, np.float32(loss))
        self.seen["steps"] += 1
        self.sums += np.float32(loss)
        self.last = self.last * 0.5 + loss
        for kept, now in zip(self.average, network.trainable_params()):
            ops.assign(kept, 0.9 * kept + 0.1 * now)
        ops.assign(optimizer.learning_rate, ms.Tensor(0.1 / (len(self.losses) + 1), ms.float32))


class Once(train.Callback):
    """Counts the steps of one call."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def on_train_step_end(self, run_context: train.RunContext) -> None:
        self.steps += 1


class Die(train.Callback):
    """Kills this process where the command line says so."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.call = call

    def die(self, step: int, place: str) -> None:
        for i, kill in enumerate(sys.argv[1:]):
            if kill == f"{rank},{self.call},{step},{place}" and not os.path.exists(f"killed-{i}"):
                open(f"killed-{i}", "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

    def on_train_step_begin(self, run_context: train.RunContext) -> None:
        self.die(run_context.original_args().cur_step_num, "begin")

    def on_train_step_end(self, run_context: train.RunContext) -> None:
        self.die(run_context.original_args().cur_step_num, "end")


class Leave(train.Callback):
    """Asks OnRequestExit to end the training after a step."""

    def on_train_step_begin(self, run_context: train.RunContext) -> None:
        with open(f"leave-{rank}.json", "w") as asked:
            json.dump({"GracefulExit": int(run_context.original_args().cur_step_num >= 25)}, asked)


network = nn.SequentialCell(nn.Flatten(), nn.Dense(784, 16), nn.ReLU(), nn.Dense(16, 10))
optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
model = train.Model(network, nn.CrossEntropyLoss(), optimizer, metrics={"loss": nn.Loss()})
scores: list[float] = []
between, dataset = Between(), create_dataset(num_shards=get_group_size(), shard_id=rank)
keep = train.CheckpointConfig(save_checkpoint_steps=3, keep_checkpoint_max=20)
for call in (1, 2):
    saved = train.ModelCheckpoint(f"call{call}-{rank}", "out", keep)
    once = Once()
    model.train(1, dataset, callbacks=[between, saved, Die(call), once])
    between.seen["steps"] += 1000  # Also in a process that passes over this call.
    scores.append(once.steps)
    scores.append(model.eval(create_dataset())["loss"])  # After a passed call: as before.
    if call == 1:  # Load other parameters than the trained ones.
        draw = np.random.default_rng(3)
        drawn = {p.name: draw.normal(size=p.shape) / 10 for p in network.trainable_params()}
        new = {n: ms.Parameter(ms.Tensor(v, ms.float32), name=n) for n, v in drawn.items()}
        ms.load_param_into_net(network, new)
# After each epoch, this callback adds up the loss of all ranks by a collective of its own.
plateau = train.ReduceLROnPlateau("loss", patience=1, factor=0.5, min_delta=10, verbose=True)
leave = train.OnRequestExit(True, False, "left", "out", f"leave-{rank}.json")
model.fit(3, dataset, create_dataset(), callbacks=[plateau, Leave(), leave, Die(3)])
numbers = [*between.losses, between.best, between.seen["steps"], *between.sums]
numbers += [*scores, *between.last.asnumpy(), plateau.best, plateau.wait, plateau.cooldown_counter]
held = [ms.Tensor(np.array(numbers, np.float32)), *between.average]
ms.save_checkpoint([{"name": f"v{i}", "data": v} for i, v in enumerate(held)], f"held-{rank}.ckpt")
ms.save_checkpoint(model.train_network, f"final-{rank}.ckpt")
