"""Rehearsals of PyTorch programs: those that keep the contract are equal, others are named."""
# With --ci: a job for each kind.

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_job import needs_torch

HERE = Path(__file__).parent
LIMIT_S = 240
KEEP = ("much", "fsdp2", "own sums")
GRADIENT = r"the gradient of `.*` before the sum"
BREAK = {"cache": GRADIENT, "environment": GRADIENT, "attribute": "its batch"}


@contextlib.contextmanager
def job(
    folder: Path, kind: str, *options: str, program: tuple[str, ...] = (str(HERE / "rehearsed.py"),)
) -> Iterator[subprocess.Popen[str]]:
    name = f"rehearsed-{os.getpid()}-{kind.replace(' ', '-')}"
    env = {**os.environ, "HOLDFAST_JOB": name, "HOLDFAST_REHEARSAL_INTERVAL": "0.5"}
    env["HOLDFAST_SPARE_SHARE"] = "100"  # Other tests keep the processors busy.
    command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2", "--spares", "1"]
    command += ["--log-dir", str(folder / "log"), *options, *program, kind]
    with open(folder / "output", "w") as output:
        running = subprocess.Popen(
            command, cwd=folder, env=env, stdout=output, stderr=output, text=True
        )
    try:
        yield running
    finally:
        running.terminate()
        running.wait(LIMIT_S)


def verdicts(folder: Path) -> list[tuple[int, str]]:
    """Return the verdicts of rehearsals so far, with ranks."""
    found = []
    for rank in (0, 1):
        log = folder / "log" / f"rehearsal_{rank}.log"
        text = log.read_text() if log.exists() else ""
        said = re.findall(r"holdfast: the rehearsal of rank \d, step \w+: (.*)", text)
        found += [(rank, line) for line in said if line != "again"]
    return found


def until(folder: Path, running: subprocess.Popen[str], enough: int) -> list[tuple[int, str]]:
    end = time.monotonic() + LIMIT_S
    while len(found := verdicts(folder)) < enough:
        logs = "".join(path.read_text() for path in folder.glob("log/rehearsal_*.log"))
        assert running.poll() is None, (folder / "output").read_text() + logs
        assert time.monotonic() < end, (folder / "output").read_text() + logs
        time.sleep(0.1)
    return found


@needs_torch
@pytest.mark.kill
@pytest.mark.parametrize("kind", KEEP)
def test_torch_rehearsal_accuses_no_program_that_keeps_all(tmp_path: Path, kind: str) -> None:
    with job(tmp_path, kind) as running:
        found = until(tmp_path, running, 2)
    assert {line for _, line in found} == {"equal"}, found
    assert {rank for rank, _ in found} == {0, 1}


@needs_torch
@pytest.mark.kill
@pytest.mark.parametrize("kind", BREAK)
def test_torch_rehearsal_names_what_differs_first(tmp_path: Path, kind: str) -> None:
    with job(tmp_path, kind) as running:
        end = time.monotonic() + LIMIT_S
        # At first all is equal: the attribute changes later.
        while "would go on with other bits" not in (tmp_path / "output").read_text():
            assert time.monotonic() < end and running.poll() is None, verdicts(tmp_path)
            time.sleep(0.1)
        found = verdicts(tmp_path)
    said = next(line for _, line in found if line.startswith("differs"))
    assert re.fullmatch(f"differs: {BREAK[kind]}", said), found


@needs_torch
@pytest.mark.kill
def test_torch_rehearsal_tells_chance_from_what_is_not_kept(tmp_path: Path) -> None:
    with job(tmp_path, "clock") as running:
        found = until(tmp_path, running, 1)
    assert found[0][1].startswith("uncertain: the gradient of "), found


@needs_torch
@pytest.mark.kill
def test_torch_a_strict_job_ends_by_what_differs(tmp_path: Path) -> None:
    with job(tmp_path, "counter", "--strict-rehearsals") as running:
        assert running.wait(LIMIT_S) == 1
    assert "What differs first: the gradient of " in (tmp_path / "output").read_text()
