"""Lose everything of jobs of PyTorch and MindSpore at random instants; compare with calm runs.

    soak_power_cuts.py torch|mindspore [--cuts N] [--seed S]

All processes of a job are killed at once, whatever they do: they start, train, write a snapshot,
load one. The same command goes on, until the job has ended. The newest whole snapshot is never an
older one than before, and all ranks end with the bits of the undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everything_lost import cut_power, whole

LIMIT_S = 900  # A soak may run on a busy machine.

Begin = Callable[..., "subprocess.Popen[str]"]  # Of the options beyond those of an undisturbed run.


def of_torch(folder: Path) -> tuple[Begin, Callable[[], Any]]:
    """Return what begins a job in a folder, and what reads its results."""
    from torch_lost import Runs

    runs = Runs(folder)
    return lambda *options: runs.start("out", *options, pause=0.04), lambda: runs.saved("out")


def of_mindspore(folder: Path) -> tuple[Begin, Callable[[], Any]]:
    """Return what begins a job in a folder, and what reads its results."""
    from mindspore_job import HERE, Job, digests, make_data

    data = make_data(folder / "data", 640)
    words = [str(HERE / "mindspore_program.py"), json.dumps({"graph": True})]

    def begin(*options: str) -> subprocess.Popen[str]:
        return Job(folder / "job", data, words, options=options).process

    # A checkpoint of a step before the cut may not have been written yet, or have been removed.
    names = ("final-0.ckpt", "final-1.ckpt")
    return begin, lambda: [digests(folder / "job")[name] for name in names]


def step(snapshots: Path) -> int:
    """Return the step of the newest whole snapshot, 0 without any."""
    found = whole(snapshots)
    return int(found[0].name.rpartition("-")[2]) if found else 0


def lose(begin: Begin, snapshots: Path, draw: random.Random, most: int) -> int:
    """Run a job to its end, and cut its power `most` times at most; return how often."""
    options = (f"--snapshot={snapshots}", "--snapshot_every=3", "--resume=auto")
    for cuts in range(most + 1):
        before = step(snapshots)
        process = begin(*options)
        try:
            said = process.communicate(timeout=LIMIT_S if cuts == most else draw.uniform(0.2, 9))[0]
        except subprocess.TimeoutExpired:
            assert cuts < most, "it does not end"
            cut_power(process.pid)
            said = process.communicate()[0] or ""
            assert step(snapshots) >= before, (before, step(snapshots))
        else:
            assert process.returncode == 0, said
            return cuts
        assert not before or "begins anew" not in said, said
    raise AssertionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("face", choices=("torch", "mindspore"))
    parser.add_argument("--cuts", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(32))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    draw = random.Random(arguments.seed)
    face = of_torch if arguments.face == "torch" else of_mindspore
    cuts = jobs = 0
    expected: Any = None
    while cuts < arguments.cuts:
        with tempfile.TemporaryDirectory(prefix="holdfast-cuts-", dir="/var/tmp") as name:
            if expected is None:
                (Path(name) / "calm").mkdir()
                begin, results = face(Path(name) / "calm")
                calm = begin()
                said = calm.communicate(timeout=LIMIT_S)[0]
                assert calm.returncode == 0, said
                expected = results()
            (Path(name) / "cut").mkdir()
            begin, results = face(Path(name) / "cut")
            cuts += lose(begin, Path(name) / "snapshots", draw, arguments.cuts - cuts)
            jobs += 1
            if results() != expected:
                subprocess.run(["cp", "-r", name, f"{name}-kept"], check=True)
                raise SystemExit(f"the bits DIFFER; all is in {name}-kept")
            print(f"job {jobs}: equal bits; {cuts} cuts in all", flush=True)


if __name__ == "__main__":
    main()
