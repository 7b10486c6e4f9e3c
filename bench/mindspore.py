"""Measure MindSpore under Holdfast beside plain MindSpore, in one run.

    $(tools/mindspore_venv) bench/mindspore.py [start reduce step kill]

with a build tree's `python` folder on PYTHONPATH. Prints one line per case, milliseconds:

    start    from msrun's start to the first line of the last of 4 ranks that knows its rank
    reduce   all-reduce of 25 MiB through a one-operator graph, 2 ranks (median)
    step     a step of a small network, 2 ranks (median)
    kill     from SIGKILL of a rank to the next new step of the other: with a spare that has
             rehearsed, and without one. Plain MindSpore never goes on.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PYTHON = Path(sys.executable)
LIMIT_S = 240
HEAD = """
import os, time, numpy as np, mindspore as ms
from mindspore import nn, ops, train, Tensor
from mindspore.communication import init, get_rank, get_group_size
ms.set_context(mode=ms.GRAPH_MODE); ms.set_device("CPU"); init()
print("RANK", get_rank(), "at", time.time(), flush=True)
"""
START = HEAD
REDUCE = (
    HEAD
    + """
class Net(nn.Cell):
    def __init__(self): super().__init__(); self.reduce = ops.AllReduce()
    def construct(self, x): return self.reduce(x)
x, net, times = Tensor(np.full(25 << 18, get_rank() + 1, np.float32)), Net(), []
for i in range(12):
    begun = time.perf_counter(); net(x).asnumpy(); times.append(time.perf_counter() - begun)
print("MEDIAN", sorted(times[2:])[5] * 1e3, flush=True)
"""
)
TRAIN = (
    HEAD
    + """
ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
ms.set_seed(1)
net = nn.SequentialCell(nn.Dense(784, 512), nn.ReLU(), nn.Dense(512, 10))
draw = np.random.default_rng(1)
X, Y = draw.random((1280, 784), np.float32), draw.integers(0, 10, 1280).astype(np.int32)
data = ms.dataset.NumpySlicesDataset((X, Y), shuffle=False).batch(32)
times = []
class Trace(train.Callback):
    def on_train_step_begin(self, c): self.begun = time.perf_counter()
    def on_train_step_end(self, c):
        times.append(time.perf_counter() - self.begun)
        n = c.original_args().cur_step_num
        print("STEP", n, os.getpid(), time.time(), flush=True)
        time.sleep(float(os.getenv("PAUSE", "0")))
model = ms.Model(net, nn.CrossEntropyLoss(), nn.Momentum(net.trainable_params(), 0.01, 0.9))
model.train(int(os.environ["EPOCHS"]), data, callbacks=[Trace()])
print("MEDIAN", sorted(times[5:])[len(times[5:]) // 2] * 1e3, flush=True)
"""
)


class Run:
    """A job under way, ours or plain."""

    def __init__(self, program: str, ranks: int, ours: bool, spares: int = 0, **more: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mindspore-bench-"))
        (self.folder / "program.py").write_text(program)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = [f"--worker_num={ranks}", f"--local_worker_num={ranks}"]
        options += [f"--master_port={port}", "--join=True", "--log_dir=logs"]
        command = [str(PYTHON.parent / "msrun"), *options, "program.py"]
        if ours:
            words = ["-m", "holdfast.mindspore", "msrun", *options, f"--spares={spares}"]
            command = [str(PYTHON), *words, "program.py"]
        path = f"{PYTHON.parent}:{os.environ['PATH']}"
        self.begun = time.time()
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            env=dict(os.environ, PATH=path, OMP_NUM_THREADS="1", GLOG_v="3", **more),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def found(self, pattern: str) -> list[tuple[str, ...]]:
        logs = [p for p in self.folder.glob("logs/*.log") if p.name != "scheduler.log"]
        text = "\n".join(p.read_text(errors="replace") for p in logs)
        return [m.groups() for m in re.finditer(pattern, text, re.M)]

    def wait_for(self, pattern: str, count: int) -> list[tuple[str, ...]]:
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            found = self.found(pattern)
            if len(found) >= count:
                return found
            time.sleep(0.02)
        raise TimeoutError(f"{pattern} in {self.folder}")

    def end(self) -> None:
        try:
            self.process.wait(LIMIT_S)
        finally:
            if self.process.poll() is None:
                self.process.terminate()
                self.process.wait(30)


def start() -> None:
    for ours in (True, False):
        run = Run(START, 4, ours)
        found = run.wait_for(r"^RANK (\d) at (\S+)", 4)
        run.end()
        print(f"start  {name(ours)} {1e3 * (max(float(t) for _, t in found) - run.begun):.0f}")


def median(what: str, program: str, **more: str) -> None:
    for ours in (True, False):
        run = Run(program, 2, ours, **more)
        run.end()
        values = [float(value) for (value,) in run.found(r"^MEDIAN (\S+)")]
        print(f"{what:6s} {name(ours)} {statistics.mean(values):.2f}", flush=True)


def kill(spares: int) -> None:
    """Kill rank 0's process; wait for a step that nobody had made."""
    run = Run(
        TRAIN, 2, ours=True, spares=spares, EPOCHS="100", PAUSE="0.02", HOLDFAST_TRACE="trace"
    )
    try:
        pattern = r"^STEP (\d+) (\d+) (\S+)"
        run.wait_for(pattern, 40)
        if spares:
            run.wait_for(r"(rehearsed all)", 1)
        times = [float(t) for n, _, t in run.found(pattern)][-41:]
        log = run.folder / "logs" / "worker_0.log"
        pid = int(re.findall(pattern, log.read_text(), re.M)[-1][1])
        last = max(int(n) for n, _, _ in run.found(pattern))
        killed, began = time.time(), time.monotonic_ns()
        os.kill(pid, signal.SIGKILL)
        firsts: dict[str, float] = {}
        end = time.monotonic() + LIMIT_S
        while len(firsts) < 2 and time.monotonic() < end:
            time.sleep(0.02)
            for n, process, when in run.found(pattern):
                if float(when) > killed and int(n) > last + 1 and int(process) != pid:
                    firsts.setdefault(process, float(when))
    finally:
        run.process.terminate()
        run.process.wait(30)
    step = 1e3 * statistics.median(b - a for a, b in zip(sorted(times), sorted(times)[2:]))
    took = 1e3 * (max(firsts.values()) - killed)
    print(f"kill   Holdfast, {spares} spare(s): {took:.0f}, a step being {step:.0f}", flush=True)
    if os.environ.get("HOLDFAST_BENCH_PHASES"):
        for line in phases(run.folder / "trace", began):
            print(f"       {line}")


def phases(folder: Path, began: int) -> list[str]:
    """Return what the processes did after the kill, and when."""
    lines = []
    for path in folder.iterdir():
        for event in map(json.loads, path.read_text().splitlines()):
            if 0 < event["t_ns"] - began < 10**10:
                words = {k: v for k, v in event.items() if k not in ("t_ns", "name", "event")}
                lines.append((event["t_ns"] - began, path.stem, event.get("name", event), words))
    return [f"{t / 1e6:8.1f} {who} {what} {words}" for t, who, what, words in sorted(lines)[:60]]


def name(ours: bool) -> str:
    return "Holdfast " if ours else "MindSpore"


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["start", "reduce", "step", "kill"]
    if "start" in wanted:
        start()
    if "reduce" in wanted:
        median("reduce", REDUCE)
    if "step" in wanted:
        median("step", TRAIN, EPOCHS="5")
    if "kill" in wanted:
        kill(1)
        kill(0)
