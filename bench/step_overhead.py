#!/usr/bin/env python3
"""What a healthy step costs: the plain libtorch loop, ours with protection off and on, and DDP over Gloo.

bench/step_overhead.py --bin build/release/bin --data build/digits [--rounds 5] [--torch PYTHON]

All train 784-512-512-10 with momentum at batch 16, one thread a process. bench_step runs the plain loop and
ours in turns in one process, on the same data, so that a busy machine disturbs both alike. `to plain` is the
median over all pairs of neighbouring blocks, with the middle half of them: by the clock, and by processor time,
which leaves out what else the machine did. `protection off` (HOLDFAST_PROTECT=0) leaves out staging and the
commit barrier; `protection costs` is, in percent of the plain step, on less off of the same round (of each the
median over its pairs): the median over the rounds, with the middle half and how many rounds there were. With several workers the plain loop runs as often at the same time and exchanges nothing.
Nothing is traced. Rounds are interleaved; the load of the machine is printed with them.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "chaos"))
from job import Job  # noqa: E402
from torchrun import Torchrun  # noqa: E402

# Fewer than 800 steps in all. By then the momentum of a weight without gradient has shrunk by 0.9^800 to a denormal number,
# with which the processor is many times slower, in both loops.
BLOCKS, STEPS = 18, 40


def ours(arguments, workers, protect, folder):
    """For each pair of blocks: milliseconds of a step by the clock and of the processor, Holdfast's and the plain loop's."""
    path = Path(tempfile.mkdtemp(dir=folder))
    program = ["/usr/bin/env", "-u", "HOLDFAST_TRACE", arguments.bin / "bench_step", arguments.data, BLOCKS, STEPS]
    env = {"HOLDFAST_PROTECT": str(int(protect)), "OMP_NUM_THREADS": "1"}
    with Job(arguments.bin, path, program, workers, env=env) as job:
        if job.wait(300) != 0:
            sys.exit(job.text())
    logs = "".join(p.read_text() for p in (path / "log").glob("worker_*.log"))
    found = [json.loads(line) for line in logs.splitlines() if line.startswith('{"ours"')]
    return list(zip(found[0]["ours"], found[0]["plain"]))


def gloo(arguments, path, workers):
    """Milliseconds of a step of PyTorch's own data parallel loop."""
    path.mkdir()
    with Torchrun(arguments.torch, path, workers, 300) as run:
        times = run.until(lambda t: sorted(e["t_ns"] for e in t.events("step") if e["rank"] == 0 and t.newest_step() == 300)
                          or None, 300)
    return statistics.median(b - a for a, b in zip(times[50:], times[51:])) / 1e6


def row(name, values, ratio=""):
    print(f"{name:40} {statistics.median(values):8.3f} {min(values):8.3f} {max(values):8.3f}  {ratio}", flush=True)


def to_plain(pairs, kind):
    low, middle, high = statistics.quantiles((a[kind] / b[kind] for a, b in pairs), n=4)
    return f"{middle:.3f} ({low:.3f}-{high:.3f})"


def costs(on, off, kind):
    """What protection costs in one round, in percent of the plain step."""
    ratio = lambda pairs: statistics.median(a[kind] / b[kind] for a, b in pairs)  # noqa: E731
    return 100 * (ratio(on) - ratio(off))


def costs_of(rounds, kind):
    values = [costs(on, off, kind) for off, on in rounds]
    if len(values) == 1:
        return f"{values[0]:+.2f} %"
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:+.2f} % ({low:+.2f} to {high:+.2f}, {len(values)} rounds)"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--torch", type=Path, help="a Python with torch; without it Gloo is left out")
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    cases = [(workers, protect) for workers in arguments.workers for protect in (False, True)]
    found = {case: [] for case in cases}  # By case: the pairs of each round.
    over_gloo = []
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for number in range(arguments.rounds):
            for case in cases:
                found[case].append(ours(arguments, *case, Path(name)))
            if arguments.torch:
                over_gloo.append(gloo(arguments, Path(name) / f"gloo-{number}", 2))
    print(f"{'ms per step':40} {'median':>8} {'min':>8} {'max':>8}  to plain by the clock, and by processor time"
          f" (load {os.getloadavg()[0]:.1f})")
    for workers, protect in cases:
        pairs = [pair for each in found[workers, protect] for pair in each]
        mine, plain = zip(*pairs)
        if not protect:
            row(f"plain libtorch loop, {workers} at once", [t[0] for t in plain])
        row(f"ours, {workers} worker(s), protection {'on' if protect else 'off'}", [t[0] for t in mine],
            "   ".join(to_plain(pairs, kind) for kind in (0, 1)))
        if protect:
            rounds = list(zip(found[workers, False], found[workers, True]))
            print(f"  protection costs: by the clock {costs_of(rounds, 0)}, by processor time {costs_of(rounds, 1)}", flush=True)
    if over_gloo:
        row("PyTorch DDP over Gloo, 2 processes", over_gloo)


if __name__ == "__main__":
    main()
