"""Whole jobs of a trainer without a framework, under `holdfast run`, with processes killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

TRAINER = Path(__file__).with_name("trainer_core.py")
LIMIT_S = 300


class Running:
    """A job under way."""

    def __init__(self, process: subprocess.Popen[str], out: Path) -> None:
        self.process = process
        self.out = out

    def pid(self, rank: int) -> int | None:
        """Return the process that has the rank now; None: none has, or it has ended."""
        try:
            pid = int((self.out / f"pid-{rank}").read_text() or 0)
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except (OSError, ValueError):
            return None
        return None if state in "ZX" else pid

    def step(self) -> int:
        """Return the newest step that any rank has made."""
        return max((int(f.read_text() or 0) for f in self.out.glob("step-*")), default=0)

    def until(self, condition: Callable[[], int | None]) -> int:
        """Wait until a condition is true; return its value."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := condition():
                return found
            time.sleep(0.002)
        raise AssertionError(f"it never came; the newest step is {self.step()}")

    def results(self) -> dict[str, bytes]:
        """Wait for the end; return what the ranks wrote."""
        output, _ = self.process.communicate(timeout=LIMIT_S)
        logs = "".join(f"--- {f}\n{f.read_text()}" for f in sorted(self.out.glob("log/*")))
        assert self.process.returncode == 0, output + logs
        return {f.name: f.read_bytes() for f in self.out.glob("rank-*")}


@contextmanager
def job(
    out: Path,
    *arguments: str,
    workers: int = 4,
    options: tuple[str, ...] = (),
    program: Path = TRAINER,
) -> Iterator[Running]:
    out.mkdir()
    command = [
        *(sys.executable, "-m", "holdfast", "run"),
        *("--nproc-per-node", str(workers), "--log-dir", str(out / "log"), *options),
        *(str(program), "--out", str(out), *arguments),
    ]
    environment = dict(os.environ, HOLDFAST_TEST_JOB=str(out))
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        yield Running(process, out)
    finally:
        if process.poll() is None:
            process.terminate()
            process.communicate(timeout=LIMIT_S)


@pytest.mark.parametrize("spares", [0, 1])
def test_core_a_job_with_kills_ends_with_the_bits_of_one_without(
    tmp_path: Path, spares: int
) -> None:
    shape = ("--steps", "160", "--pause", "0.01")
    with job(tmp_path / "calm", *shape) as calm:
        expected = calm.results()
    assert sorted(expected) == ["rank-0", "rank-1", "rank-2", "rank-3"]

    draw = random.Random(spares)
    options = ("--spares", str(spares), "--max-restarts", "20")
    goals = sorted(draw.sample(range(1, 100), 5))  # Long before the end: a kill may come late.
    with job(tmp_path / "killed", *shape, options=options) as running:
        for victim, goal in zip([0, 3, 1, 0, 2], goals):
            running.until(lambda goal=goal: int(running.step() >= goal))
            time.sleep(0.02 * draw.random())  # Kill at a random moment within a step.
            os.kill(running.until(lambda victim=victim: running.pid(victim)), signal.SIGKILL)
        killed = running.results()
    assert killed == expected
    recoveries = (tmp_path / "killed" / "log" / "recoveries.jsonl").read_text().splitlines()
    assert len(recoveries) >= 1


def test_core_ctrl_c_ends_a_job_that_runs(tmp_path: Path) -> None:
    with job(tmp_path / "job", "--steps", "100000", "--pause", "0.01", workers=2) as running:
        running.until(lambda: running.pid(1))
        running.process.send_signal(signal.SIGINT)
        running.process.communicate(timeout=LIMIT_S)
        assert running.process.returncode == 128 + signal.SIGINT
        assert running.pid(0) is None and running.pid(1) is None


def test_core_who_dies_before_the_first_step_is_replaced(tmp_path: Path) -> None:
    early = Path(__file__).with_name("early_core.py")
    with job(tmp_path / "job", workers=3, program=early) as running:
        running.results()
    logs = [(tmp_path / "job" / "log" / f"worker_{r}.log").read_text() for r in range(3)]
    assert all("went on" in log for log in logs)
