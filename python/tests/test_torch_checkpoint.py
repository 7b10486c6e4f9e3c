"""torch.distributed.checkpoint works on the backend: sharded, whole, and in the background."""

from __future__ import annotations

from pathlib import Path

from torch_job import HERE, needs_torch, run

pytestmark = needs_torch


def test_torch_checkpoints_are_saved_and_loaded(tmp_path: Path) -> None:
    results = run(tmp_path / "job", {}, program=HERE / "torch_checkpoint.py")
    assert {rank: r["same"] for rank, r in results.items()} == {0: [True, True], 1: [True, True]}
    assert {rank: r["whole"] for rank, r in results.items()} == {0: 4, 1: 0}  # As on Gloo.
