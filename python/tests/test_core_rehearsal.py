"""Rehearsals under `holdfast run`: how their processes are started, and what people see."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_core_job import TRAINER, job

# The trainer. In a rehearsal this program only notes what it was told.
PROGRAM = """
import os, runpy
from pathlib import Path
from holdfast._sampling import recording_folder

if (rank := os.environ.get("HOLDFAST_REHEARSE")) is not None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MS_NODE_ID", "TORCHELASTIC_RESTART_COUNT")
    print("told", *(os.environ[name] for name in names), "HOLDFAST_SPARE_FD" in os.environ)
    folder = recording_folder(Path(os.environ["HOLDFAST_LIFELINE"]).parent, int(rank))
    (folder / "new").write_text({verdict!r})
    (folder / "new").replace(folder / "verdict")
    raise SystemExit(0)
runpy.run_path({trainer!r}, run_name="__main__")
"""


def program(folder: Path, verdict: str) -> Path:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(trainer=str(TRAINER), verdict=verdict))
    return path


@pytest.mark.kill
@pytest.mark.parametrize("spares", ["1", "all"])
def test_core_a_rehearsal_runs_the_program_as_its_rank(tmp_path: Path, spares: str) -> None:
    script = program(tmp_path, "equal\n3\n\n")
    options = ("--spares", spares)
    with job(tmp_path / "job", "--steps", "100000", "--pause", "0.01", workers=2, program=script,
             options=options) as running:  # fmt: skip
        log = tmp_path / "job" / "log" / "rehearsal_1.log"
        running.until(lambda: int(log.exists() and log.read_text().endswith("\n")))
        told = log.read_text()
        running.process.terminate()
        output, _ = running.process.communicate(timeout=60)
    assert told == "told 1 1 2 1 0 False\n"
    assert "told 1" not in output and "was rehearsed" not in output


@pytest.mark.kill
def test_core_a_strict_job_ends_by_a_rehearsal_that_differs(tmp_path: Path) -> None:
    script = program(tmp_path, "differs\n3\nthe loss\n")
    options = ("--spares", "1", "--strict-rehearsals")
    with job(tmp_path / "job", "--steps", "100000", "--pause", "0.01", workers=2, program=script,
             options=options) as running:  # fmt: skip
        output, _ = running.process.communicate(timeout=60)
    assert running.process.returncode == 1, output
    assert "rank 0 was rehearsed at step 3: " in output and "first: the loss. Details: " in output
