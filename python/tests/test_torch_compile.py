"""torch.compile around DistributedDataParallel, and collectives within compiled code."""
# With --ci: torch.compile takes its time.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch_job import HERE, needs_torch
from torch_warm import undisturbed

pytestmark = needs_torch


def results(folder: Path, config: dict[str, Any]) -> list[Any]:
    folder.mkdir()
    program = str(HERE / "torch_compiled.py")
    undisturbed(folder, [program, json.dumps(config), str(folder)], 2)
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("state", [False, True])
def test_torch_what_is_compiled_exchanges_as_what_is_not(tmp_path: Path, state: bool) -> None:
    plain = results(tmp_path / "plain", {"state": state, "compile": False})
    assert results(tmp_path / "compiled", {"state": state, "compile": True}) == plain
