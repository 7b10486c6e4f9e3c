"""Start a job of torch_program.py and read what it leaves."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# find_spec() instead of an import, which would take two seconds.
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
needs_fully_shard = pytest.mark.skipif(
    find_spec("torch") is None or version("torch").startswith("2.6."),
    reason="fully_shard of torch 2.6 does not run on a CPU",
)
LIMIT_S = 300
HERE = Path(__file__).parent


class Job:
    """A job under way."""

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        ranks: int = 2,
        spares: int | str = 0,
        program: Path = HERE / "torch_program.py",
        options: tuple[str, ...] = (),
    ) -> None:
        self.folder, self.ranks = folder, ranks
        folder.mkdir()
        (folder / "trace").mkdir()
        command = [
            *(sys.executable, "-m", "holdfast", "run", "--nproc-per-node", str(ranks)),
            *("--log-dir", str(folder / "log"), "--spares", str(spares), *options),
            *(str(program), json.dumps(config), str(folder)),
        ]
        self.process = subprocess.Popen(
            command,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                # Rehearsals run the program as well, which notes its rank and kills itself.
                "HOLDFAST_REHEARSALS": "0",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
                "HOLDFAST_TRACE": str(folder / "trace"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def logs(self) -> str:
        return "".join(f"--- {f}\n{f.read_text()}" for f in sorted(self.folder.glob("log/*")))

    def end(self, code: int | None = 0) -> dict[int, dict[str, Any]]:
        try:
            output, _ = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError("the job hangs\n" + self.logs()) from None
        if code is not None:
            assert self.process.returncode == code, output + self.logs()
        return {
            r: json.loads(path.read_text())
            for r in range(self.ranks)
            if (path := self.folder / f"result-{r}").exists()
        }

    def kill_at(
        self, rank: int, step: int, delay: float = 0.0, how: signal.Signals = signal.SIGKILL
    ) -> int:
        """Signal the process that has the rank when it comes to the step; return its id."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until and self.process.poll() is None:
            try:
                pid, at = (self.folder / f"pid-{rank}").read_text().split()
            except FileNotFoundError:
                at = "0"
            if int(at) >= step:
                time.sleep(delay)
                os.kill(int(pid), how)
                return int(pid)
            time.sleep(0.002)
        raise AssertionError(f"rank {rank} did not come to step {step}\n" + self.logs())

    def _process(self, mark: bytes) -> int:
        """Return the id of the job's process that has a word in its command or environment."""
        mine = {self.process.pid}
        for _ in range(2):  # The launcher's child is the agent, and that one's are the rest.
            for stat in Path("/proc").glob("[0-9]*/stat"):
                with contextlib.suppress(OSError):
                    words = stat.read_text().rpartition(")")[2].split()
                    if int(words[1]) in mine:
                        mine.add(int(stat.parent.name))
        for pid in mine:
            with contextlib.suppress(OSError):
                place = Path(f"/proc/{pid}")
                words = [
                    *(place / "environ").read_bytes().split(b"\0"),
                    (place / "comm").read_bytes(),
                ]
                if mark in words:
                    return pid
        raise AssertionError(f"the job has no process with {mark!r}")

    def scheduler(self) -> int:
        """Return the process id of the scheduler."""
        return self._process(b"MS_ROLE=MS_SCHED")

    def server(self) -> int:
        """Return the process id of one of the parameter servers."""
        return self._process(b"MS_ROLE=MS_PSERVER")

    @contextlib.contextmanager
    def without_its_agent(self) -> Iterator[None]:
        """Stop the agent for the block, so that it replaces no lost process."""
        agent = self._process(b"msrun\n")
        os.kill(agent, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(agent, signal.SIGCONT)

    def trace(self) -> list[dict[str, Any]]:
        """Return the trace of all processes so far, in order of time."""
        lines = [
            json.loads(line)
            for path in (self.folder / "trace").glob("*.jsonl")
            for line in path.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]
        return sorted(lines, key=lambda line: int(line["t_ns"]))

    def until(self, condition: Callable[[list[dict[str, Any]]], Any], what: str) -> Any:
        """Wait until a condition on the trace is true; return its value."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            if found := condition(self.trace()):
                return found
            time.sleep(0.01)
        raise AssertionError(f"there was never {what}\n" + self.logs())

    def recoveries(self) -> list[dict[str, Any]]:
        """Return the reports of all recoveries. Requires: the job has ended."""
        text = (self.folder / "log" / "recoveries.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=30)


def run(folder: Path, config: dict[str, Any], **options: Any) -> dict[int, dict[str, Any]]:
    job = Job(folder, config, **options)
    try:
        return job.end()
    finally:
        job.stop()


def draw_kills(seed: int, ranks: int, steps: int, count: int) -> list[list[Any]]:
    """Return kills at random steps and places, of the ranks in turn."""
    draw = random.Random(seed)
    places = ["forward", "collective", "update", "between"]
    at = sorted(draw.sample(range(1, steps), count))
    order = [i % ranks for i in range(count)]
    return [[rank, step, draw.choice(places)] for rank, step in zip(order, at)]
