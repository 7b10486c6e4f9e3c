"""A data-parallel MindSpore program, as its documentation writes them: mindspore_program.py CONFIG.

Nothing of Holdfast is in this program. It traces its steps, and kills itself as configured.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn, train
from mindspore.communication import get_group_size, get_rank, init

config = json.loads(sys.argv[1])
ms.set_context(mode=ms.GRAPH_MODE if config.get("graph", True) else ms.PYNATIVE_MODE)
ms.set_context(device_target=config.get("device", "CPU"))
ms.set_auto_parallel_context(
    parallel_mode=config.get("parallel", ms.ParallelMode.DATA_PARALLEL),
    gradients_mean=True,
    parameter_broadcast=config.get("broadcast", False),
)
init()
ms.set_seed(1)


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.flatten = nn.Flatten()
        self.fc1 = nn.Dense(28 * 28, config.get("width", 32))
        self.norm = nn.BatchNorm1d(config.get("width", 32))
        self.relu = nn.ReLU()
        self.fc2 = nn.Dense(config.get("width", 32), 10)

    def construct(self, x):  # type: ignore[no-untyped-def]
        return self.fc2(self.relu(self.norm(self.fc1(self.flatten(x)))))


class Counting(Network):
    """Counts its steps, as for a warm-up, and depends on the count. In PyNative only."""

    calls = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.share = 0.0

    def construct(self, x):  # type: ignore[no-untyped-def]
        self.calls += 1
        self.share = self.calls / (self.calls + 5)
        return super().construct(x) * self.share


def create_dataset(batch: int) -> ds.Dataset:
    path = os.environ["DATA_PATH"]
    data = ds.MnistDataset(path, num_shards=get_group_size(), shard_id=get_rank())
    changes = [ds.vision.Rescale(1.0 / 255.0, 0), ds.vision.HWC2CHW()]
    if config.get("augment"):
        changes.insert(0, ds.vision.RandomCrop(28, padding=2))
    data = data.map(changes, "image", num_parallel_workers=2)
    return data.map(ds.transforms.TypeCast(ms.int32), "label").batch(batch)


class Trace(train.Callback):
    """Notes in a file which process has the rank, and its step; kills it as configured."""

    begun = 0

    def scale(self, which: int) -> None:
        """Change a weight, each time in another way."""
        if config.get("scales"):
            self.begun += 1
            weight = network.trainable_params()[which]
            ms.ops.assign(weight, (0.99 - 1e-4 * self.begun) * weight)

    def on_train_begin(self, run_context: train.RunContext) -> None:
        self.scale(0)

    def on_train_epoch_begin(self, run_context: train.RunContext) -> None:
        self.scale(1)

    def die(self, place: str, step: int) -> None:
        for i, (rank, at, where) in enumerate(config.get("kills", [])):
            mark = f"killed-{i}"
            if (rank, at, where) == (get_rank(), step, place) and not os.path.exists(mark):
                open(mark, "w").close()
                os.kill(os.getpid(), signal.SIGKILL)

    def fail(self, place: str, step: int) -> None:
        """Raise the exception of a broken device or of a bug, as configured."""
        for i, (rank, at, where, kind) in enumerate(config.get("errors", [])):
            mark = f"failed-{i}"
            if (rank, at, where) == (get_rank(), step, place) and not os.path.exists(mark):
                open(mark, "w").close()
                if kind == "uce":
                    for parameter in network.trainable_params():
                        ms.ops.assign(parameter, ms.ops.zeros_like(parameter))
                    raise RuntimeError("UCEError occurs when execute, error_code=507053.")
                raise ValueError("a bug of this rank's")

    def on_train_step_begin(self, run_context: train.RunContext) -> None:
        self.scale(2)
        self.die("begin", run_context.original_args().cur_step_num)
        self.fail("begin", run_context.original_args().cur_step_num)

    def on_train_step_end(self, run_context: train.RunContext) -> None:
        p = run_context.original_args()
        with open(f"pid-{get_rank()}.new", "w") as out:
            out.write(f"{os.getpid()} {p.cur_step_num}")
        os.rename(f"pid-{get_rank()}.new", f"pid-{get_rank()}")
        print(
            f"STEP {p.cur_step_num} of epoch {p.cur_epoch_num} at {time.time():.4f} "
            f"loss {float(p.net_outputs.asnumpy()):.9f}",
            flush=True,
        )
        self.die("end", p.cur_step_num)
        self.fail("end", p.cur_step_num)
        time.sleep(config.get("pause", 0.0))


network = Network() if config.get("graph", True) else Counting()
dataset = create_dataset(32)
kind = getattr(nn, config.get("optimizer", "Momentum"))
rate = config.get("rate", 0.01)
if config.get("schedule"):
    rate = nn.cosine_decay_lr(0.0, rate, 300, 10, 5)
more = {"momentum": 0.9} if kind in (nn.Momentum, nn.SGD) else {}
optimizer = kind(network.trainable_params(), rate, **more)
if config.get("tft"):
    optimizer = nn.OptTFTWrapper(optimizer)
model = ms.Model(network, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer)
keep = train.CheckpointConfig(config.get("save", 7), keep_checkpoint_max=config.get("keep", 3))
callbacks = [
    train.LossMonitor(5),
    train.ModelCheckpoint(f"net-{get_rank()}", f"out/{get_rank()}", keep),
    Trace(),
]
if config.get("dies_in_gasp") == get_rank():
    saving = sys.modules["mindspore.train.callback._train_fault_tolerance"]
    usual_save = saving.save_checkpoint

    def die_in_save(saved: nn.Cell, path: str, **named: object) -> None:
        usual_save(saved, path, **named)
        os.truncate(path, os.path.getsize(path) // 2)
        open("died-in-gasp", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

    saving.save_checkpoint = die_in_save
if "kills_in_gasp" in config:
    saving = sys.modules["mindspore.train.callback._train_fault_tolerance"]
    usual_save = saving.save_checkpoint

    def kill_in_save(saved: nn.Cell, path: str, **named: object) -> None:
        with open(f"pid-{config['kills_in_gasp']}") as pid:
            os.kill(int(pid.read().split()[0]), signal.SIGKILL)
        open("killed-in-gasp", "w").close()
        usual_save(saved, path, **named)

    saving.save_checkpoint = kill_in_save
if config.get("tft"):
    callbacks.append(train.TFTRegister(0, "127.0.0.1", 30051, "./ttp_checkpoints/"))
first = {}
if config.get("resume"):  # Lines of the dying-gasp document.
    saved = ms.load_checkpoint(config["resume"])
    for part in (network, optimizer):
        ms.load_param_into_net(part, saved)
    dataset.set_init_step(int(saved["step_num"]))
    if config.get("initial_epoch"):  # The document forgets to pass it.
        first["initial_epoch"] = int(saved["step_num"]) // dataset.get_dataset_size()
    if config.get("initial_step"):
        callbacks[-1].initial_step = int(saved["step_num"])
model.train(config.get("epochs", 2), dataset, callbacks=callbacks, **first)
ms.save_checkpoint(model.train_network, f"final-{get_rank()}.ckpt")
print("DONE", flush=True)
