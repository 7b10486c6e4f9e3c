"""Train a small network whose parameters servers keep, as programs of former MindSpore do.

mindspore_served.py CONFIG: `loop` (model, own, state), `optimizer`, `part` (the first layer is not
served), `schedule` (the learning rate changes), `seed` (else each worker begins otherwise),
`steps`, `nan` (a step with such samples), `kills`: [step, place, victims]. Who comes there first
kills the victims.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.communication import get_rank, init

CONFIG: dict[str, Any] = json.loads(sys.argv[1])
STEPS: int = CONFIG.get("steps", 12)
BATCH = 16


class Network(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Dense(30, 200)  # More values than a row has.
        if CONFIG.get("lookup"):
            self.table = nn.EmbeddingLookup(60, 200, target="CPU")
        self.fc2 = nn.Dense(200, 7)
        self.relu = nn.ReLU()

    def construct(self, x):  # type: ignore[no-untyped-def]
        out = self.relu(self.fc1(x))
        if CONFIG.get("lookup"):
            out = out + self.table(ops.cast(x[:, 0] * 20 + x[0, 1] * 30, ms.int32))
        return self.fc2(out)


def processes_of(role: bytes) -> list[int]:
    """Return the job's processes in a role, in the order in which they came."""
    mine = b"MS_SCHED_PORT=" + os.environb[b"HOLDFAST_TEST_PORT"]
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{name}/environ").read_bytes().split(b"\0")
            if mine in words and b"MS_ROLE=" + role in words:
                found.append(int(name))
    return sorted(found)


def at(step: int, place: str) -> None:
    """Kill whom the configuration names here."""
    for when, where, victims in CONFIG.get("kills", []):
        if (when, where) != (step, place):
            continue
        try:
            Path(f"killed-{when}-{where}").touch(exist_ok=False)
        except FileExistsError:
            continue
        if "scheduler" in victims:
            os.kill(processes_of(b"MS_SCHED")[0], signal.SIGKILL)
        servers = processes_of(b"MS_PSERVER")
        for server in servers if "servers" in victims else servers[: victims.count("server")]:
            os.kill(server, signal.SIGKILL)
        if "worker" in victims:
            os.kill(os.getpid(), signal.SIGKILL)


def batch(step: int) -> tuple[Any, Any]:
    """Return the samples of a step, the same on all ranks."""
    draw = np.random.default_rng(step)
    inputs = draw.random((BATCH, 30), np.float32)
    if step == CONFIG.get("nan"):
        inputs[:] = np.nan
    return inputs, draw.random((BATCH, 7), np.float32)


def optimizer_of(network: Network) -> Any:
    """Return the optimizer that the configuration names."""
    rate: Any = nn.ExponentialDecayLR(0.05, 0.9, 4) if CONFIG.get("schedule") else 0.05
    weights: Any = network.trainable_params()
    kind = CONFIG.get("optimizer", "Momentum")
    if CONFIG.get("groups"):
        weights = [
            {"params": network.fc1.trainable_params(), "lr": 0.01, "weight_decay": 0.1},
            {"params": network.fc2.trainable_params()},
        ]
    if kind == "Momentum":
        return nn.Momentum(weights, rate, 0.9, use_nesterov=CONFIG.get("nesterov", False))
    if kind == "SGD":
        momentum, nesterov = CONFIG.get("momentum", 0.0), CONFIG.get("nesterov", False)
        return nn.SGD(weights, rate, momentum, nesterov=nesterov, weight_decay=1e-3)
    return getattr(nn, kind)(weights, learning_rate=rate)


ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
if CONFIG.get("full_batch"):
    ms.set_auto_parallel_context(full_batch=True, parallel_mode=ms.ParallelMode.AUTO_PARALLEL)
if CONFIG.get("data_parallel"):
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
if not CONFIG.get("without"):
    ms.set_ps_context(enable_ps=True)
init()
RANK = get_rank()
if CONFIG.get("seed", True):
    ms.set_seed(1)
net = Network()
if not CONFIG.get("without"):
    (net.fc2 if CONFIG.get("part") else net).set_param_ps()
    if CONFIG.get("lookup"):
        net.table.embedding_table.set_param_ps(init_in_server=True)
optimizer = optimizer_of(net)
if CONFIG.get("lookup"):
    optimizer.target = "CPU"  # Else MindSpore updates a row wrongly that comes twice in a batch.
loss_fn = nn.MSELoss()
losses: list[bytes] = []


def trained_by_model() -> None:
    """Train by Model.train."""

    class Look(ms.train.Callback):  # type: ignore[misc]
        def on_train_step_begin(self, run_context: Any) -> None:
            at(run_context.original_args().cur_step_num, "begin")

        def on_train_step_end(self, run_context: Any) -> None:
            given = run_context.original_args()
            losses.append(given.net_outputs.asnumpy().tobytes())
            seen = hashlib.sha256(net.fc2.weight.asnumpy().tobytes()).hexdigest()[:8]
            print("STEP", given.cur_step_num, seen, flush=True)
            at(given.cur_step_num, "end")

    rows = [batch(step) for step in range(STEPS)]
    columns = [np.concatenate(part) for part in zip(*rows)]
    data = ms.dataset.NumpySlicesDataset(tuple(columns), shuffle=False).batch(BATCH)
    model = ms.Model(net, loss_fn, optimizer, metrics={"loss": nn.Loss()})
    model.train(1, data, callbacks=[Look()], dataset_sink_mode=False)


def forward(x, y):  # type: ignore[no-untyped-def]
    out = net(x)
    return loss_fn(out, y), out


gradients = ops.value_and_grad(forward, None, net.trainable_params(), has_aux=True)


@ms.jit
def train_step(x, y):  # type: ignore[no-untyped-def]
    (loss, _), grads = gradients(x, y)
    optimizer(grads)
    return loss


def made(step: int) -> None:
    """Make a step of a loop of the program's own."""
    at(step, "begin")
    loss = train_step(*map(ms.Tensor, batch(step)))
    at(step, "computed")
    losses.append(loss.asnumpy().tobytes())
    at(step, "end")


if CONFIG.get("loop", "model") == "model":
    trained_by_model()
elif CONFIG["loop"] == "own":
    for number in range(STEPS):
        made(number)
else:
    import holdfast.mindspore as hf

    state = hf.State(net, optimizer)
    while state.n < STEPS:
        with state.step():
            made(state.n)

values = [p.asnumpy().tobytes() for p in net.trainable_params()]
slots = getattr(optimizer, "moments", getattr(optimizer, "accum", ()))
result = {
    "slots": max((float(np.abs(p.asnumpy()).max()) for p in slots), default=0.0),
    "digest": hashlib.sha256(b"".join(values)).hexdigest(),
    "loss": hashlib.sha256(b"".join(losses[-3:])).hexdigest(),
}
np.savez(f"values-{RANK}.npz", *(p.asnumpy() for p in net.trainable_params()))
Path(f"result-{RANK}").write_text(json.dumps(result))
