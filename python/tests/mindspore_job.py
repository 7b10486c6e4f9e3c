"""Start jobs of real MindSpore under Holdfast, kill their processes, and read what they leave."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

LIMIT_S = 240
HERE = Path(__file__).parent

NEEDS_MINDSPORE = pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is None,
    reason="MindSpore is not in this Python; tools/mindspore_venv",
)
# Marks tests that would make the usual run too long on two cores.
NIGHTLY = pytest.mark.skipif(
    os.environ.get("HOLDFAST_TEST_NIGHTLY") != "1", reason="HOLDFAST_TEST_NIGHTLY=1 runs it"
)


def make_data(folder: Path, count: int = 1600) -> Path:
    """Write a set in the format of MNIST: ten patterns with noise."""
    draw = np.random.default_rng(7)
    patterns = (draw.random((10, 28, 28)) < 0.2).astype(np.int16) * 200
    labels = draw.permutation(np.arange(count) % 10).astype(np.uint8)
    noise = draw.integers(-40, 41, (count, 28, 28), dtype=np.int16)
    images = np.clip(patterns[labels] + noise, 0, 255).astype(np.uint8)
    folder.mkdir(parents=True)
    head = struct.pack(">IIII", 0x803, count, 28, 28)
    (folder / "train-images-idx3-ubyte").write_bytes(head + images.tobytes())
    head = struct.pack(">II", 0x801, count)
    (folder / "train-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], limit_s: float = LIMIT_S) -> Any:
    """Wait until a condition is true; return its value, or None after the limit."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.005)
    return None


class Job:
    """A job under way, in a folder of its own."""

    def __init__(
        self,
        folder: Path,
        data: Path,
        program: list[str],
        ranks: int = 2,
        spares: int | None = 0,
        options: tuple[str, ...] = (),
        variables: dict[str, str] | None = None,
        join: bool = True,
    ) -> None:
        self.folder, self.ranks, self.port = folder, ranks, free_port()
        folder.mkdir(exist_ok=True)
        command = [
            *(sys.executable, "-m", "holdfast.mindspore", "msrun"),
            *(f"--worker_num={ranks}", f"--local_worker_num={ranks}"),
            *(f"--master_port={self.port}", f"--join={join}", "--log_dir=logs"),
            *(() if spares is None else (f"--spares={spares}",)),
            *options,
            *program,
        ]
        self.process = self.start(command, data, variables or {})

    def start(
        self, command: list[str], data: Path, variables: dict[str, str]
    ) -> subprocess.Popen[str]:
        usual = {"OMP_NUM_THREADS": "1", "GLOG_v": "3", "DATA_PATH": str(data)}
        usual["HOLDFAST_REHEARSALS"] = "0"  # A program's callbacks write the number of its process.
        environment = {**os.environ, **usual, **variables}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def logs(self) -> str:
        files = sorted(self.folder.glob("logs/*"))
        return "".join(f"--- {f}\n{f.read_text(errors='replace')[-6000:]}" for f in files)

    def end(self, code: int | None = 0, limit_s: float = LIMIT_S) -> str:
        try:
            output, _ = self.process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self.stop()
            raise AssertionError("the job hangs\n" + self.logs()) from None
        if code is not None:
            assert self.process.returncode == code, output + self.logs()
        return output

    def at(self, rank: int) -> tuple[int, int]:
        """Return the process that has the rank, and the last step that it ended."""
        try:
            pid, step = (self.folder / f"pid-{rank}").read_text().split()
        except FileNotFoundError:
            return 0, 0
        return int(pid), int(step)

    def kill_at(self, rank: int, step: int, delay_s: float = 0.0) -> float:
        """SIGKILL the process that has the rank when it comes to the step; return the time."""
        reached = until(lambda: self.process.poll() is not None or self.at(rank)[1] >= step)
        assert reached and self.process.poll() is None, f"rank {rank} did not come to {step}\n" + (
            self.logs()
        )
        time.sleep(delay_s)
        when = time.time()
        os.kill(self.at(rank)[0], signal.SIGKILL)
        return when

    def steps(self) -> list[tuple[float, int, str]]:
        """Return every traced step: time, number, loss."""
        found = []
        for log in self.folder.glob("logs/*.log"):
            for line in log.read_text(errors="replace").splitlines():
                if line.startswith("STEP "):
                    words = line.split()
                    found.append((float(words[6]), int(words[1]), words[8]))
        return sorted(found)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.communicate(timeout=60)


@contextlib.contextmanager
def job(folder: Path, data: Path, config: dict[str, Any], **options: Any) -> Iterator[Job]:
    """A job of mindspore_program.py."""
    program = [str(HERE / "mindspore_program.py"), json.dumps(config)]
    made = Job(folder, data, program, **options)
    try:
        yield made
    finally:
        made.stop()


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every checkpoint."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.ckpt"))
    }


def draw_kills(seed: int, ranks: int, first: int, last: int, count: int) -> list[list[Any]]:
    """Return kills at random places, of rank 0 and others."""
    draw = random.Random(seed)
    at = sorted(draw.sample(range(first, last), count))
    return [[i % ranks, step, draw.choice(["begin", "end"])] for i, step in enumerate(at)]
