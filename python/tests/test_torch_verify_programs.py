"""holdfast verify on each program of verify/: one that breaks the rule, and the same corrected."""
# With --ci: a program is run four times over.

from __future__ import annotations

import os
from pathlib import Path

import pytest
from test_torch_verify import culprits, verify
from torch_job import needs_torch

# Faults that only a kill shows. The others are all in many.py, or run nightly.
FEW = {"sliced": "i"}
MANY = {
    "installed": "self.calls",
    "next_batch": "x",
    "closure": "n",
    "module_global": "helper.seen",
    "class_attribute": "Meter.total",
    "confusion": "matrix",
    "counts": "counts",
    "meters": "meters",
    "shared_draw": "draw",
}


nightly = pytest.mark.skipif(
    not os.environ.get("HOLDFAST_TEST_NIGHTLY"), reason="HOLDFAST_TEST_NIGHTLY is not set"
)


def see(tmp_path: Path, program: str, culprit: str) -> None:
    code, text, report = verify(tmp_path, f"{program}.py")
    assert code == 1, text
    assert any(name.startswith(culprit) for name in culprits(report)), text


@needs_torch
@pytest.mark.kill
@pytest.mark.parametrize("program", FEW)
def test_torch_verify_catches(tmp_path: Path, program: str) -> None:
    see(tmp_path, program, FEW[program])


@needs_torch
@pytest.mark.kill
def test_torch_verify_passes_on_what_holdfast_refuses_itself(tmp_path: Path) -> None:
    code, text, report = verify(tmp_path, "own_generator.py")
    assert code == 1 and "Noisy" in report["refused"] and report["refused"] in text


@needs_torch
@pytest.mark.kill
@nightly
@pytest.mark.parametrize("program", MANY)
def test_torch_verify_catches_each_alone(tmp_path: Path, program: str) -> None:
    see(tmp_path, program, MANY[program])


@needs_torch
@pytest.mark.kill
@nightly
def test_torch_verify_says_that_a_program_does_not_repeat_itself(tmp_path: Path) -> None:
    code, text, report = verify(tmp_path, "seeded_by_time.py")
    assert code == 1 and report["unrepeatable"] and "does not repeat itself" in text


@needs_torch
@pytest.mark.kill
@nightly
@pytest.mark.parametrize("program", [*FEW, *MANY, "own_generator", "seeded_by_time"])
def test_torch_verify_passes_what_was_put_right(tmp_path: Path, program: str) -> None:
    code, text, report = verify(tmp_path, f"{program}.py", "kept")
    assert code == 0 and report["equal"], text
