"""Session.end_on_exit(): exit code 0 ends the session well, and no other code does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 120

PROGRAM = """
import multiprocessing, os, sys
import holdfast

def train(then):
    job = holdfast.init()
    session = job.open(private_bytes=8)
    session.end_on_exit()
    session.join()
    while session.version < 3:
        session.begin_step()
        session.world.barrier()
        session.end_step(holdfast.Step())
    exec(then, {"session": session, "sys": sys, "os": os})
"""


def ends_of(trace: Path) -> int:
    """Return how many trainings ended well."""
    lines = [line for file in trace.iterdir() for line in file.read_text().splitlines()]
    return sum(json.loads(line)["event"] == "end" for line in lines)


def alone(tmp_path: Path, program: Path) -> tuple[int, int, str]:
    """Run a program without a job; return its exit code, its number of ends, and its output."""
    trace = tmp_path / "trace"
    done = subprocess.run(
        [sys.executable, str(program)],
        env=dict(os.environ, HOLDFAST_TRACE=str(trace)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    return done.returncode, ends_of(trace), done.stdout


@pytest.mark.parametrize(
    ("then", "code", "ends"),
    [
        ("pass", 0, 1),
        ("sys.exit()", 0, 1),
        ("sys.exit(0)", 0, 1),
        ("session.end()", 0, 1),
        ("session.end(); session.close()", 0, 1),
        ("session.close()", 0, 0),
        ("sys.exit(3)", 3, 0),
        ("sys.exit('no data')", 1, 0),
        ("raise RuntimeError('broken')", 1, 0),
        ("os._exit(0)", 0, 0),
        ("os.fork() or sys.exit(0); os.wait(); sys.exit(3)", 3, 0),
    ],
)
def test_core_the_exit_code_says_whether_the_training_has_ended(
    tmp_path: Path, then: str, code: int, ends: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"{PROGRAM}\ntrain({then!r})\n")
    got = alone(tmp_path, program)
    assert got[:2] == (code, ends), got[2]


@pytest.mark.parametrize("how", ["fork", "spawn"])
@pytest.mark.parametrize(
    ("then", "code", "ends"), [("pass", 0, 1), ("sys.exit(0)", 0, 1), ("sys.exit(3)", 3, 0)]
)
def test_core_a_child_of_multiprocessing_ends_its_training_likewise(
    tmp_path: Path, how: str, then: str, code: int, ends: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"{PROGRAM}\nif __name__ == '__main__':\n"
        f"    context = multiprocessing.get_context({how!r})\n"
        f"    child = context.Process(target=train, args=({then!r},))\n"
        "    child.start(); child.join(); print('ended with', child.exitcode)\n"
    )
    got = alone(tmp_path, program)
    assert f"ended with {code}\n" in got[2] and got[1] == ends, got[2]


def run(tmp_path: Path, then: str) -> tuple[int, str]:
    program = tmp_path / "program.py"
    program.write_text(f"{PROGRAM}\ntrain({then!r})\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2"),
            *("--max-restarts", "0", "--log-dir", str(tmp_path / "log"), str(program)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LIMIT_S,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_core_a_job_whose_ranks_exit_with_code_0_has_ended_well(tmp_path: Path) -> None:
    code, said = run(tmp_path, "pass")
    assert code == 0 and "in good order" in said, said


@pytest.mark.parametrize(
    ("then", "code"), [("sys.exit(3)", 3), ("raise RuntimeError('broken')", 1)]
)
def test_core_a_job_whose_ranks_exit_with_another_code_has_failed(
    tmp_path: Path, then: str, code: int
) -> None:
    got, said = run(tmp_path, then)
    assert got == code and "the job has failed" in said, said
