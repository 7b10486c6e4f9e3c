"""What is said of a torch that was not tried, is too old, or is not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch_job import needs_torch
from torch_warm import REFUSED, say

from holdfast import _tried

pytestmark = needs_torch

BEGIN = f"""{REFUSED}
import torch, holdfast.torch as hf
torch.__version__ = "2.99.0"
"""


def test_torch_that_was_not_tried_is_said_to_be(tmp_path: Path) -> None:
    works = ", ".join(_tried.working("torch"))
    said = say(f"{BEGIN}hf.init()", tmp_path / "log")
    assert f"torch 2.99.0 was not tried; those that were: {works}" in said


def test_torch_that_was_not_tried_and_lacks_a_name_is_refused(tmp_path: Path) -> None:
    text = """
from torch.optim.lr_scheduler import LambdaLR
plain = LambdaLR.__init__
def without(self, optimizer, function):
    plain(self, optimizer, function)
    del optimizer.step
LambdaLR.__init__ = without
refused("torch 2.99.0 has no `_wrapped_by_lr_sched` any more, by which Holdfast sees", hf.init)
"""
    say(BEGIN + text, tmp_path / "log")


@pytest.mark.parametrize(
    ("torch", "said"),
    [
        ("None", "holdfast.torch needs PyTorch, which is not installed here; pip install torch\n"),
        (
            "types.SimpleNamespace(__version__='2.5.1')",
            "torch 2.5.1 is older than the oldest that Holdfast was tried with; take one of these:",
        ),
    ],
)
def test_torch_is_missing_or_too_old_and_said_to_be(torch: str, said: str) -> None:
    code = (
        f"import sys, types; sys.modules['torch'] = {torch}\n"
        "import holdfast\n"
        "try:\n    import holdfast.torch\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert done.stdout.startswith(said), done.stderr
