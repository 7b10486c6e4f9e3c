"""Programs from MindSpore's tutorials end with the same files after the loss of a process."""

from __future__ import annotations

from pathlib import Path

import pytest
from mindspore_job import HERE, NEEDS_MINDSPORE, NIGHTLY, Job, digests, make_data

pytestmark = [pytest.mark.kill, NEEDS_MINDSPORE, NIGHTLY]


def run_both(folder: Path, words: list[str], ranks: int, spares: int) -> list[list[str]]:
    """Run a program without a kill and with one; compare the files; return the printed lines."""
    data = make_data(folder / "data", 640)
    files, printed = [], []
    for kind in ("calm", "kill"):
        program = [str(HERE / words[0]), *words[1:], kind]
        run = Job(folder / kind, data, program, ranks=ranks, spares=spares)
        try:
            run.end()
        finally:
            run.stop()
        assert (folder / kind / "killed").exists() is (kind == "kill")
        files.append(digests(folder / kind))
        lines = {line for line in run.logs().splitlines() if line.split(" ")[0].isupper()}
        printed.append(sorted(lines))
    assert files[0] == files[1]
    assert {f"final-{rank}.ckpt" for rank in range(ranks)} <= set(files[0])
    return printed


def test_mindspore_lenet_with_callbacks_and_an_evaluation(tmp_path: Path) -> None:
    calm, kill = run_both(tmp_path, ["mindspore_lenet.py"], ranks=2, spares=1)
    assert calm == kill
    assert any(line.startswith("ACCURACY ") for line in calm)


@pytest.mark.parametrize("mode", ["graph", "pynative"])
def test_mindspore_collectives_by_hand_and_a_group_of_some(tmp_path: Path, mode: str) -> None:
    calm, kill = run_both(tmp_path, ["mindspore_groups.py", mode], ranks=3, spares=0)
    assert calm == kill
    assert {"SUM [6.0]", "PART [3.0] 2 [1, 1]", "BROADCAST [7.0]"} <= set(calm)
