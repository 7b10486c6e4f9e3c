"""The backend gives the results of Gloo: every collective, every type, 1 to 4 ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_job import HERE, needs_torch, run

pytestmark = needs_torch


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_torch_every_collective_gives_what_gloo_gives(tmp_path: Path, ranks: int) -> None:
    results = run(tmp_path / "job", {}, ranks=ranks, program=HERE / "torch_collectives.py")
    assert sorted(results) == list(range(ranks))
    for result in results.values():
        assert result["different"] == []
        assert result["compared"] > 300
