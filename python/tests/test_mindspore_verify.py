"""holdfast verify on a MindSpore program names what its loop remembers outside of State."""
# With --ci: a program is run four times over.

from __future__ import annotations

from pathlib import Path

import pytest
from mindspore_job import HERE, make_data
from test_torch_verify import culprits, verify

TIMED = """
import time

class Timed(train.Callback):
    def step_end(self, run_context):
        self.at = time.time()

"""


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


@pytest.mark.kill
def test_mindspore_verify_kills_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA_PATH", str(make_data(tmp_path / "data", 256)))
    # Its ModelCheckpoint keeps times, and so does a callback of its own.
    text = (HERE / "mindspore_served_lenet.py").read_text()
    assert text.count("callbacks=[saved, ") == 1
    program = tmp_path / "served.py"
    program.write_text(
        text.replace("callbacks=[saved, ", "callbacks=[saved, Timed(), ").replace(
            "saved = ", TIMED + "saved = "
        )
    )
    code, text, report = verify(tmp_path, "--servers", "1", str(program))
    assert code == 0 and report["equal"], text
    kills = [kill for run in report["runs"] for kill in run["kills"]]
    assert {kill["result"] for kill in kills} == {"equal"}, text
    assert [kill["server"] for kill in kills if kill["server"] is not None] == [2], text
