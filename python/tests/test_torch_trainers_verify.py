"""Verify and rehearsals pass what trainers keep, and find what a program keeps in a global."""
# With --ci: after `tools/torch_venv --trainers`; else the tests are skipped.

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from test_torch_rehearsal import job, until
from test_torch_verify import PROGRAMS, culprits, verify
from torch_job import needs_torch

pytestmark = [
    needs_torch,
    pytest.mark.kill,
    pytest.mark.parametrize("library", ["lightning", "ignite"]),
]


def program(library: str) -> str:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed; tools/torch_venv --trainers installs it")
    return f"{library}_loop.py"


def test_torch_verify_passes_what_a_trainer_keeps(tmp_path: Path, library: str) -> None:
    code, text, report = verify(tmp_path, program(library), "kept")
    assert code == 0 and report["equal"], text
    kills = [kill for run in report["runs"] for kill in run["kills"]]
    assert len(kills) == 5 and {kill["result"] for kill in kills} == {"equal"}, text


def test_torch_verify_names_a_global_that_a_callback_counts(tmp_path: Path, library: str) -> None:
    code, text, report = verify(tmp_path, program(library))
    assert code == 1 and "count" in culprits(report), text
    for run in report["runs"]:
        assert run["title"].startswith("undisturbed") or run["differences"], text


@pytest.mark.parametrize(("form", "verdict"), [("kept", "equal"), ("lost", "differs: ")])
def test_torch_a_rehearsal_knows_what_a_trainer_keeps(
    tmp_path: Path, library: str, form: str, verdict: str
) -> None:
    found: list[tuple[int, str]] = []
    with job(tmp_path, form, program=(str(PROGRAMS / program(library)), "slow")) as running:
        while sum(line.startswith(verdict) for _, line in found) < 2:
            found = until(tmp_path, running, len(found) + 1)
    saves = "skipped: the trainer saves a checkpoint in this step"
    assert all(line.startswith((verdict, saves)) for _, line in found), found
