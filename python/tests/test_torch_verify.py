"""holdfast verify on PyTorch programs: it names what breaks the rule, and passes what keeps it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_core_verify import looks_at
from torch_job import needs_torch

LIMIT_S = 900
SEED = "2"  # Of 12 steps, its faults are a kill, a flipped bit and a lost page.
PROGRAMS = Path(__file__).parent / "verify"


def verify(folder: Path, *words: str) -> tuple[int, str, dict[str, Any]]:
    """Return exit code, output, report."""
    work = folder / "work"
    shutil.copytree(PROGRAMS, work)
    report = folder / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "verify", "--json", str(report), "--quick", *words],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    text = done.stdout + done.stderr
    assert report.exists(), text
    return done.returncode, text, json.loads(report.read_text())


def culprits(report: dict[str, Any]) -> set[str]:
    return {
        culprit["name"].partition(" (")[0]
        for run in report["runs"]
        for difference in run["differences"]
        for culprit in difference["culprits"]
    }


MODULE = """
import torch
def train(look):
    model = torch.nn.Sequential()
    model.seen = 0
    for i in range(2):
        model.seen += 1
        look()
"""


@needs_torch
def test_torch_verify_sees_a_number_that_was_put_into_torchs_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed = looks_at(MODULE, tmp_path, monkeypatch)[1]
    assert changed["model.seen (local of train)"] == "2"


@needs_torch
@pytest.mark.kill
def test_torch_verify_names_each_thing_that_state_does_not_hold(tmp_path: Path) -> None:
    code, text, report = verify(tmp_path, "many.py")
    assert code == 1 and not report["equal"], text
    wanted = {"closed", "Meter.total", "helper.seen", "matrix", "counts", "running"}
    assert wanted <= culprits(report), text
    assert "printed" in text and "`running` was" in text and "not in State" in text


@needs_torch
@pytest.mark.kill
@pytest.mark.parametrize(("form", "code"), [("kept", 0), ("lost", 1)])
def test_torch_verify_has_faults_on_order_happen(tmp_path: Path, form: str, code: int) -> None:
    words = ["--ranks", "3", "--faults", "3", "--seed", SEED, "many.py", form]
    found, text, report = verify(tmp_path, *words)
    assert found == code, text
    (run,) = [run for run in report["runs"] if run["faults"]]
    assert [fault["fault"].split()[0] for fault in run["faults"]] == ["kill", "flip", "page"], text
    result = "something DIFFERS in this run" if code else "equal"
    assert {fault["result"] for fault in run["faults"]} == {result}, text
    assert bool(culprits({"runs": [run]})) == bool(code), text


@needs_torch
@pytest.mark.kill
def test_torch_verify_finds_nothing_where_the_rule_is_followed(tmp_path: Path) -> None:
    code, text, report = verify(tmp_path, "many.py", "kept")
    assert code == 0 and report["equal"], text
    assert {k["result"] for run in report["runs"] for k in run["kills"]} == {"equal"}, text
    places = {k["place"] for run in report["runs"] for k in run["kills"]}
    assert places == {"forward", "update", "between steps", "evaluation", "save"}
