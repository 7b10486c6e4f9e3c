"""The results of undisturbed jobs, with which jobs that lose processes are compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_job import run
from torch_warm import calm

Results = dict[int, dict[str, Any]]


@pytest.fixture(scope="module", name="calm")
def calm_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any], int], Results]:
    """Return a function that gives a configuration's results without kills, made once."""
    made: dict[str, Results] = {}

    def results(config: dict[str, Any], ranks: int) -> Results:
        key = json.dumps([config, ranks], sort_keys=True)
        if key not in made:
            made[key] = calm(tmp_path_factory.mktemp("calm") / "job", config, ranks)
            assert sorted(made[key]) == list(range(ranks))
        return made[key]

    return results


def compare(tmp_path: Path, calm: Any, config: dict[str, Any], kills: Any, **options: Any) -> None:
    ranks = options.get("ranks", 2)
    expected = calm(config, ranks)
    results = run(tmp_path / "job", {**config, "kills": kills}, **options)
    done = len(list((tmp_path / "job").glob("killed-*")))
    assert done == len(kills)
    assert results == expected
    assert {len(r["losses"]) for r in results.values()} == {expected[0]["n"]}
