"""holdfast verify on a MindSpore program names what its loop remembers outside of State."""
# With --ci: a program is run four times over.

from __future__ import annotations

from pathlib import Path

import pytest
from test_torch_verify import culprits, verify


@pytest.mark.kill
def test_mindspore_verify_names_what_the_loop_remembers(tmp_path: Path) -> None:
    code, text, report = verify(tmp_path, "mindspore_total.py")
    assert code == 1 and culprits(report) == {"total"}, text
    assert "printed" in text and "`total` was" in text


@pytest.mark.kill
def test_mindspore_verify_finds_nothing_where_it_is_kept(tmp_path: Path) -> None:
    code, text, report = verify(tmp_path, "mindspore_total.py", "kept")
    assert code == 0 and report["equal"], text
    assert {k["result"] for run in report["runs"] for k in run["kills"]} == {"equal"}, text
