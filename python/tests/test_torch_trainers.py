"""Examples with Hugging Face, Lightning, Ignite and Accelerate end alike after kills."""
# With --ci: after `tools/torch_venv --trainers`; else the tests are skipped.

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from test_torch_examples import EXAMPLES
from torch_job import HERE, needs_torch

pytestmark = needs_torch

PACKAGES = {
    "hf_trainer": "transformers",
    "lightning_trainer": "lightning",
    "ignite_engine": "ignite",
    "accelerate_loop": "accelerate",
    "fabric_loop": "lightning",
}
LIMIT_S = 1200  # Each process imports its library first, and a busy machine needs a minute for it.
# Fewer steps than the examples make: three epochs of 8 batches.
SHORTER = {"digits(4096)": "digits(512)", "Tokens(2048)": "Tokens(256)"}
KILLS = [
    [1, 2, "forward"],
    [0, 5, "backward"],
    [1, 8, "between"],
    [0, 8, "evaluation"],
    [1, 11, "sum"],
    [0, 14, "update"],
    [0, 16, "between"],
    [1, 16, "evaluation"],
]
# Of trainers with loops of their own, which evaluate and save within steps.
DRIVEN = ("hf_trainer", "lightning_trainer", "ignite_engine")
KILLS_OF_DRIVEN = [
    [1, 2, "forward"],
    [0, 4, "save"],
    [1, 5, "evaluation"],
    [1, 8, "between"],
    [0, 9, "backward"],
    [1, 11, "sum"],
    [0, 14, "update"],
    [0, 15, "evaluation"],
    [0, 16, "between"],
    [0, 19, "save"],
    [1, 22, "evaluation"],
]


def trained(folder: Path, name: str, kills: list[Any], spares: int) -> list[Any]:
    """Train with two ranks; return what each rank's State holds at the end, and what is printed."""
    final, folder = folder, folder.parent / "job"  # A trainer keeps the paths of its files.
    folder.mkdir()
    script = folder / "train.py"
    script.write_text((EXAMPLES / f"{name}.py").read_text())
    patch = ["patch", "-s", str(script), str(EXAMPLES / f"{name}.diff")]
    subprocess.run(patch, check=True, capture_output=True)
    text = script.read_text()
    for long, short in SHORTER.items():
        text = text.replace(long, short)
    script.write_text(text)
    command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node=2", f"--spares={spares}"]
    made = subprocess.run(
        [*command, str(HERE / "torch_trainer.py"), str(script), str(folder), json.dumps(kills)],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    assert len(list(folder.glob("killed-*"))) == len(kills), made.stdout + made.stderr
    said = [line.partition("]:")[2] for line in made.stdout.splitlines() if "]:loss " in line]
    assert len(said) == 1, made.stdout
    folder = folder.rename(final)
    return [*(json.loads((folder / f"result-{rank}").read_text()) for rank in range(2)), said]


@pytest.mark.parametrize("name", list(PACKAGES))
def test_torch_a_trainer_ends_alike_after_kills(tmp_path: Path, name: str) -> None:
    if find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed; tools/torch_venv --trainers installs it")
    calm = trained(tmp_path / "calm", name, [], 0)
    assert calm[0]["n"] == 24
    first, second = (KILLS, KILLS[:4])
    if name in DRIVEN:
        first, second = KILLS_OF_DRIVEN[::2], KILLS_OF_DRIVEN[1::2]
    assert trained(tmp_path / "killed", name, first, 0) == calm
    assert trained(tmp_path / "spare", name, second, 1) == calm
