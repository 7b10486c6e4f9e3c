"""examples/mindspore/loop.py: a hand-written loop begins again after a death; its diff keeps it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from mindspore_job import HERE, NEEDS_MINDSPORE, Job, digests, make_data

pytestmark = [pytest.mark.kill, NEEDS_MINDSPORE]

EXAMPLES = HERE.parents[1] / "examples" / "mindspore"
# In the midst of the second epoch rank 1 kills itself, once. `noted`: the epoch's steps.
UPDATE = "        optimizer(reducer(grads))\n"
KILL = """        if (get_rank(), epoch, len(noted)) == (1, 1, 3):
            try:
                open("killed", "x").close()
                os.kill(os.getpid(), 9)
            except FileExistsError:
                pass
        noted.append(epoch)
"""


def run(folder: Path, data: Path, with_diff: bool, kill: bool) -> tuple[dict[str, str], list[str]]:
    """Run the example; return its checkpoints, and what rank 0 prints."""
    folder.mkdir()
    script = folder / "loop.py"
    script.write_text((EXAMPLES / "loop.py").read_text())
    if with_diff:
        patch = ["patch", "-s", str(script), str(EXAMPLES / "loop.diff")]
        subprocess.run(patch, check=True, capture_output=True)
    if kill:
        text = script.read_text()
        assert text.count(UPDATE) == 1
        text = text.replace(UPDATE, UPDATE + KILL)
        text = re.sub(r"(?m)^(for epoch in .*\n)", r"\1    noted = []\n", text)
        script.write_text(text)
    made = Job(folder, data, [str(script)])
    try:
        made.end()
    finally:
        made.stop()
    assert (folder / "killed").exists() == kill
    log = (folder / "logs" / "worker_0.log").read_text()
    return digests(folder), re.findall(r"(?m)^epoch \d, loss .*$", log)


def test_mindspore_examples_loop_is_kept_by_its_diff(tmp_path: Path) -> None:
    data = make_data(tmp_path / "data", 640)
    calm, said = run(tmp_path / "calm", data, with_diff=False, kill=False)
    assert len(calm) == 2 and [line[:7] for line in said] == ["epoch 0", "epoch 1", "epoch 2"]
    again, said_again = run(tmp_path / "again", data, with_diff=False, kill=True)
    assert again == calm and said_again == [said[0], *said]  # From the top: epoch 0 comes twice.
    assert run(tmp_path / "kept", data, with_diff=True, kill=True) == (calm, said)
