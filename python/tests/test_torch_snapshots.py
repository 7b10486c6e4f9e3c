"""PyTorch jobs lose everything, and go on from a snapshot with the same bits."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from everything_lost import cut_power, whole
from snapshot_files import forge
from torch_lost import PROGRAM, Runs


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    made = Runs(tmp_path)
    calm = made.start("out")
    said = calm.communicate(timeout=180)[0]
    assert calm.returncode == 0, said
    made.calm = made.saved("out")  # type: ignore[attr-defined]
    return made


def goes_on(runs: Runs, *options: str) -> str:
    """Resume, and compare with the run that lost nothing; return what it says."""
    for path in runs.folder.glob("out-*.pt"):
        path.unlink()
    again = runs.start("out", *options)
    said = str(again.communicate(timeout=180)[0])
    assert again.returncode == 0, said
    assert runs.saved("out") == runs.calm  # type: ignore[attr-defined]
    return said


@pytest.mark.kill
def test_torch_everything_is_lost_twice_and_the_job_goes_on_with_the_same_bits(runs: Runs) -> None:
    options = (f"--snapshot={runs.snapshots}", "--snapshot-every=7", "--resume=auto")
    for _ in range(2):
        before = whole(runs.snapshots)[:1]
        lost = runs.start("out", *options, pause=0.02)
        runs.until_there_are(2, lost)
        end = time.monotonic() + 120
        while whole(runs.snapshots)[:1] == before and lost.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        cut_power(lost.pid)
        lost.communicate()
    step = whole(runs.snapshots)[0].name.rpartition("-")[2]
    assert f"begins again from the snapshot of step {step} " in goes_on(runs, *options)


@pytest.mark.kill
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_torch_a_signal_makes_a_last_snapshot(runs: Runs, number: int) -> None:
    ended = runs.start("out", f"--snapshot={runs.snapshots}", "--snapshot-every=5", pause=0.02)
    runs.until_there_are(1, ended)
    before = int(whole(runs.snapshots)[0].name.rpartition("-")[2])
    ended.send_signal(number)
    said = ended.communicate(timeout=60)[0]
    assert ended.returncode == 128 + number, said
    assert "saves the last step that was made in " in said
    assert int(whole(runs.snapshots)[0].name.rpartition("-")[2]) >= before
    goes_on(runs, f"--resume={whole(runs.snapshots)[0]}")


FLIP = """
    if state.n == 5 and torch.distributed.get_rank() == 0:
        import os
        import subprocess
        order = ["flip", "--rank", "1", "--at-step", "20", "--phase", "stage"]
        order += ["--job", os.environ["HOLDFAST_JOB"]]
        subprocess.run([sys.executable, "-m", "holdfast", "inject", *order], check=True)
"""


def test_torch_a_part_that_a_comparison_finds_wrong_is_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 20 of rank 1 is copied while step 21 compares, and finds its memory wrong."""
    monkeypatch.setenv("HOLDFAST_DIGEST_EVERY", "1")
    runs = Runs(tmp_path)
    three = ("--nproc-per-node=3", "--allow-inject")
    calm = runs.start("out", *three)
    said = calm.communicate(timeout=180)[0]
    assert calm.returncode == 0, said
    runs.calm = runs.saved("out")  # type: ignore[attr-defined]
    assert len(runs.calm) == 3  # type: ignore[attr-defined]
    steps = "for x, y in state.steps(loader, epochs=3):"
    (tmp_path / "program.py").write_text(PROGRAM.replace(steps, steps + FLIP))
    keep = (f"--snapshot={runs.snapshots}", "--snapshot-every=20", "--snapshot-keep=10")
    made = runs.start("out", *three, *keep)
    said = made.communicate(timeout=180)[0]
    assert made.returncode == 0, said
    assert "It has been given the values that most ranks hold" in said, said
    assert "its memory had changed, as the comparison with the other ranks has shown" in said
    assert runs.saved("out") == runs.calm  # type: ignore[attr-defined]
    found = [int(one.name.rpartition("-")[2]) for one in whole(runs.snapshots)]
    assert found and 20 not in found, said
    (tmp_path / "program.py").write_text(PROGRAM)
    goes_on(runs, *three, f"--resume={runs.snapshots}")


def test_torch_a_snapshot_of_another_model_is_named(runs: Runs) -> None:
    made = runs.start("out", f"--snapshot={runs.snapshots}", "--snapshot-every=20", pause=0.01)
    said = made.communicate(timeout=180)[0]
    assert made.returncode == 0, said
    other = runs.start("other", f"--resume={runs.snapshots}", width=2048)
    said = other.communicate(timeout=180)[0]
    assert other.returncode != 0
    assert "differs from that of" in said or "was written by another" in said, said
    wide = runs.start("other", f"--resume={runs.snapshots}", width=33)
    said = wide.communicate(timeout=180)[0]
    assert wide.returncode != 0, said


def test_torch_what_is_another_is_said_before_a_step(runs: Runs) -> None:
    made = runs.start("out", f"--snapshot={runs.snapshots}", "--snapshot-every=25")
    said = made.communicate(timeout=180)[0]
    assert made.returncode == 0, said
    older = whole(runs.snapshots)[1]  # In the midst of the second epoch.
    now = version("torch").encode()
    was = b"9" * len(now)

    def change(_: str, content: bytearray) -> None:
        if content.startswith(b"HFTORCH2"):
            assert now in content
            content[:] = content.replace(now, was, 1)

    forge(older, 0, change)
    forge(older, 1, change)
    other = runs.start("out", f"--resume={older}", items=820)
    said = other.communicate(timeout=180)[0]
    assert other.returncode == 0, said
    for line in (
        "was made by another command: `820` was `800`. What State keeps, as a learning rate, is",
        f"holdfast: this state was made with torch {was.decode()}",
        "the data has 820 items and had 800 when this epoch began",
    ):
        assert said.count(line) == 1, said


def test_torch_an_image_of_another_format_is_refused(runs: Runs) -> None:
    made = runs.start("out", f"--snapshot={runs.snapshots}", "--snapshot-every=25")
    said = made.communicate(timeout=180)[0]
    assert made.returncode == 0, said
    newest = whole(runs.snapshots)[0]

    def change(_: str, content: bytearray) -> None:
        if content.startswith(b"HFTORCH2"):
            content[7:8] = b"1"

    for rank in range(2):
        forge(newest, rank, change)
    other = runs.start("out", f"--resume={newest}")
    said = other.communicate(timeout=180)[0]
    assert other.returncode != 0
    assert "is of format b'1', which another release of Holdfast made" in said, said
    out = str(runs.folder / "out.pt")
    words = (sys.executable, "-m", "holdfast", "snapshot", "export", str(newest), "--to", out)
    export = subprocess.run(words, capture_output=True, text=True)
    assert export.returncode == 1 and "is of format b'1'" in export.stderr, export.stderr


def test_torch_no_snapshot_is_named(tmp_path: Path) -> None:
    runs = Runs(tmp_path)
    none = runs.start("out", f"--resume={tmp_path}")
    said = none.communicate(timeout=120)[0]
    assert none.returncode == 2
    assert "there is no whole snapshot in" in said
