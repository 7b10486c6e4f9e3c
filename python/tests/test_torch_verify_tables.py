"""holdfast verify with parameter servers: it kills them, and compares pushes and rows."""
# With --ci: a program is run four times over.

from __future__ import annotations

from pathlib import Path

import pytest
from test_torch_verify import culprits, verify
from torch_job import needs_torch

SERVERS = ("--nproc-per-node", "2", "--servers", "1")


@needs_torch
@pytest.mark.kill
@pytest.mark.parametrize("program", ["tables", "served"])
def test_torch_verify_finds_nothing_after_a_servers_death(tmp_path: Path, program: str) -> None:
    code, text, report = verify(tmp_path, *SERVERS, f"{program}.py", "kept")
    assert code == 0 and report["equal"] and report["servers"] == 1, text
    (run,) = [run for run in report["runs"] if run["kills"]]
    assert {kill["result"] for kill in run["kills"]} == {"equal"}, text
    assert [kill["server"] for kill in run["kills"] if kill["server"] is not None] == [2], text
    assert "server 2, no spare" in text


@needs_torch
@pytest.mark.kill
@pytest.mark.parametrize(
    ("how", "culprit", "what"),
    [
        ("ids", "last", "model1.net.module.top.weight"),
        ("lr", "age", "the rates of users"),
        ("pushes", "age", "what is pushed to table unseen"),
    ],
)
def test_torch_verify_catches_what_tables_depend_on(
    tmp_path: Path, how: str, culprit: str, what: str
) -> None:
    code, text, report = verify(tmp_path, *SERVERS, "tables.py", how)
    assert code == 1 and culprit in culprits(report), text
    differences = [d for run in report["runs"] for d in run["differences"]]
    assert what in {d["name"] for d in differences if d["kind"] == "state"}, text
    tables = {d["name"] for d in differences if d["kind"] == "table"}
    assert ("unseen" if how == "pushes" else "users") in tables, text
    assert "rows differ)" in text


@needs_torch
@pytest.mark.kill
def test_torch_verify_says_that_it_needs_servers(tmp_path: Path) -> None:
    code, text, report = verify(tmp_path, "tables.py", "kept")
    assert code == 1 and "`holdfast verify --servers 1 ...`" in report["refused"], text
    assert report["refused"] in text
