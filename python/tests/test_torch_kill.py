"""Programs that lose processes end with the bits of one that lost none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_job import Job, draw_kills, needs_fully_shard, needs_torch
from torch_kills import compare

pytest_plugins = ["torch_kills"]
pytestmark = [pytest.mark.kill, needs_torch]

DDP: dict[str, Any] = {"loader_workers": 2}


@pytest.mark.parametrize("spares", [0, 1])
def test_torch_ddp_with_dropout_batch_norm_and_loader_workers(
    tmp_path: Path, calm: Any, spares: int
) -> None:
    kills = draw_kills(spares, ranks=2, steps=18, count=2)
    compare(tmp_path, calm, DDP, kills, spares=spares)


@needs_fully_shard
def test_torch_fsdp_on_two_ranks(tmp_path: Path, calm: Any) -> None:
    compare(tmp_path, calm, {"kind": "fsdp"}, [[1, 1, "collective"], [0, 6, "between"]])


@needs_fully_shard
def test_torch_fsdp_on_four_ranks(tmp_path: Path, calm: Any) -> None:
    compare(tmp_path, calm, {"kind": "fsdp"}, [[2, 4, "collective"]], ranks=4)


def test_torch_a_world_of_one_with_a_loop_of_its_own(tmp_path: Path, calm: Any) -> None:
    config = {"kind": "plain", "own_loop": True}
    compare(tmp_path, calm, config, [[0, 4, "update"], [0, 9, "between"]], ranks=1)


def test_torch_a_kill_from_outside_at_any_instant(tmp_path: Path, calm: Any) -> None:
    config = {"samples": 320}
    job = Job(tmp_path / "job", {**config, "wait": 0.02})
    try:
        job.kill_at(1, 5, delay=0.013)
        results = job.end()
    finally:
        job.stop()
    assert results == calm(config, 2)
