"""Real MindSpore loses everything, and goes on from a snapshot with the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from everything_lost import cut_power, whole
from mindspore_job import HERE, NEEDS_MINDSPORE, Job, digests, make_data, until

pytestmark = [pytest.mark.kill, NEEDS_MINDSPORE]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["mindspore_program.py", json.dumps({"graph": True})], id="model-train"),
        pytest.param(["mindspore_state.py", "pynative"], id="own-loop"),
    ],
)
def test_mindspore_everything_is_lost_and_the_job_goes_on_with_the_same_bits(
    tmp_path: Path, program: list[str]
) -> None:
    data = make_data(tmp_path / "data", 640)
    words = [str(HERE / program[0]), *program[1:]]
    snapshots = tmp_path / "snapshots"

    def start(folder: Path, *options: str) -> Any:
        return Job(folder, data, words, options=options)

    calm = start(tmp_path / "calm")
    try:
        calm.end()
    finally:
        calm.stop()
    lost = start(tmp_path / "job", f"--snapshot={snapshots}", "--snapshot_every=3")
    try:
        assert until(lambda: len(whole(snapshots)) >= 2), lost.logs()
    finally:
        cut_power(lost.process.pid)
        lost.process.communicate()
    at = int(whole(snapshots)[0].name.rpartition("-")[2])
    again = start(tmp_path / "job", f"--snapshot={snapshots}", "--resume=auto")
    try:
        said = again.end()
    finally:
        again.stop()
    assert f"begins again from the snapshot of step {at}" in said
    assert digests(tmp_path / "job") == digests(tmp_path / "calm") != {}
    if program[0] == "mindspore_program.py":
        # Last, since it goes on with the checkpoints of the job's folder.
        more = make_data(tmp_path / "more", 704)
        other = Job(tmp_path / "other", more, words, options=(f"--resume={whole(snapshots)[0]}",))
        try:
            other.end()
            assert other.logs().count("an epoch has 11 batches and had 10 when it began") == 1
        finally:
            other.stop()
