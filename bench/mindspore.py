"""Measure MindSpore under Holdfast beside plain MindSpore, in one run.

    $(tools/mindspore_venv) bench/mindspore.py [start reduce step kill gasp]

with a build tree's `python` folder on PYTHONPATH. Prints one line per case, milliseconds:

    start    from msrun's start to the first line of the last of 4 ranks that knows its rank
    reduce   all-reduce of 25 MiB through a one-operator graph, 2 ranks (median)
    step     a step of a small network, 2 ranks (median)
    kill     from SIGKILL of a rank to the next new step of the other: with a spare that has
             rehearsed (--rehearse), with one that has not, and without one. Plain MindSpore never
             goes on.
    gasp     from SIGKILL of a rank to the last checkpoint under its name, 5 MB
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
from typing import Any, NamedTuple

PYTHON = Path(sys.executable)
LIMIT_S = 240
STEP = r"^STEP (\d+) (\d+) (\S+)"
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
width, gasps = int(os.getenv("WIDTH", "512")), "MS_ENABLE_TFT" in os.environ
net = nn.SequentialCell(nn.Dense(784, width), nn.ReLU(), nn.Dense(width, 10))
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
optimizer = nn.Momentum(net.trainable_params(), 0.01, 0.9)
model = ms.Model(net, nn.CrossEntropyLoss(), nn.OptTFTWrapper(optimizer) if gasps else optimizer)
model.train(int(os.environ["EPOCHS"]), data, callbacks=[
    Trace(), *([train.TrainFaultTolerance("./ttp")] if gasps else [])])
print("MEDIAN", sorted(times[5:])[len(times[5:]) // 2] * 1e3, flush=True)
"""
)


class Run:
    """A job under way, under Holdfast or plain MindSpore."""

    def __init__(
        self,
        program: str,
        ranks: int,
        ours: bool,
        spares: int = 0,
        rehearse: bool = False,
        **more: str,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mindspore-bench-"))
        (self.folder / "program.py").write_text(program)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = [f"--worker_num={ranks}", f"--local_worker_num={ranks}"]
        options += [f"--master_port={port}", "--join=True", "--log_dir=logs"]
        command = [str(PYTHON.parent / "msrun"), *options, "program.py"]
        if ours:
            kind = "--rehearse" if rehearse else f"--spares={spares}"
            words = ["-m", "holdfast.mindspore", "msrun", *options, kind]
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


class Victim(NamedTuple):
    """The process that was killed, and the time."""

    pid: int
    time: float
    monotonic_ns: int


def strike(run: Run, rank: int) -> Victim:
    """Kill the process that has a rank."""
    log = run.folder / "logs" / f"worker_{rank}.log"
    pid = int(re.findall(STEP, log.read_text(), re.M)[-1][1])
    killed = Victim(pid, time.time(), time.monotonic_ns())
    os.kill(pid, signal.SIGKILL)
    return killed


def kill(spares: int, rehearse: bool = False) -> None:
    """Kill rank 0's process; wait until both ranks have made a new step."""
    more = {"EPOCHS": "100", "PAUSE": "0.02", "HOLDFAST_TRACE": "trace"}
    run = Run(TRAIN, 2, ours=True, spares=spares, rehearse=rehearse, **more)
    try:
        run.wait_for(STEP, 60)
        if spares:
            run.wait_for(r"(waits for a place)", spares)
        times = sorted(float(t) for n, _, t in run.found(STEP))[-41:]
        victim = strike(run, 0)
        end = time.monotonic() + LIMIT_S
        firsts: dict[int, int] = {}
        while len(firsts) < 2 and time.monotonic() < end:
            time.sleep(0.02)
            for event in events(run, victim):
                if event["event"] == "step" and event["generation"] > 1:
                    firsts.setdefault(event["pid"], event["t_ns"] - victim.monotonic_ns)
    finally:
        run.process.terminate()
        run.process.wait(30)
    step = 1e3 * statistics.median(b - a for a, b in zip(times, times[2:]))
    took = max(firsts.values()) / 1e6
    what = f"{spares} spare(s){' that rehearsed' if rehearse else ''}"
    print(f"kill   Holdfast, {what}: {took:.0f}, a step being {step:.0f}", flush=True)
    show_phases(run, victim)


def gasp() -> None:
    """Kill rank 1's process; see when the last checkpoint of rank 0 has its name."""
    switches = {"MS_ENABLE_TFT": "{TTP:1}", "MINDIO_FOR_MINDSPORE": "1", "WIDTH": "800"}
    # As in the documents' scripts, the other rank has to end its step before it can save.
    run = Run(TRAIN, 2, ours=True, spares=2, EPOCHS="100", HOLDFAST_TRACE="trace", **switches)
    try:
        run.wait_for(STEP, 60)
        times = sorted(float(t) for n, _, t in run.found(STEP))[-41:]
        victim = strike(run, 1)
        run.end()
    finally:
        run.end()
    (folder,) = (run.folder / "ttp").glob("ttp_saved_checkpoints-step_*")
    (file,) = folder.glob("rank_0/*.ckpt")
    step = 1e3 * statistics.median(b - a for a, b in zip(times, times[2:]))
    took = 1e3 * (folder.stat().st_ctime - victim.time)
    size = file.stat().st_size / 1e6
    print(f"gasp   Holdfast, {size:.1f} MB: {took:.0f}, a step being {step:.0f}", flush=True)
    show_phases(run, victim)


def events(run: Run, victim: Victim) -> list[dict[str, Any]]:
    """Return what the processes have traced since the kill."""
    found = []
    for path in (run.folder / "trace").iterdir():
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n") and json.loads(line)["t_ns"] > victim.monotonic_ns:
                found.append({**json.loads(line), "who": path.stem})
    return sorted(found, key=lambda event: event["t_ns"])


def show_phases(run: Run, victim: Victim) -> None:
    """Print what happened after the kill, if MINDSPORE_BENCH_PHASES is set."""
    if os.environ.get("MINDSPORE_BENCH_PHASES"):
        for event in events(run, victim)[:60]:
            after = (event["t_ns"] - victim.monotonic_ns) / 1e6
            print(f"       {after:8.1f} {event['who']} {event['event']}")


def name(ours: bool) -> str:
    return "Holdfast " if ours else "MindSpore"


if __name__ == "__main__":
    wanted = sys.argv[1:] or ["start", "reduce", "step", "kill", "gasp"]
    if "start" in wanted:
        start()
    if "reduce" in wanted:
        median("reduce", REDUCE)
    if "step" in wanted:
        median("step", TRAIN, EPOCHS="5")
    if "kill" in wanted:
        kill(2, rehearse=True)
        kill(1)
        kill(0)
    if "gasp" in wanted:
        gasp()
