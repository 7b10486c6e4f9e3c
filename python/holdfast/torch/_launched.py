"""Refuse processes that something else than Holdfast has started: nobody could replace them."""

from __future__ import annotations

import os
import sys
from typing import Final

from holdfast._errors import UserError

# A variable that only one launcher sets, and that launcher. Some call torchrun's, so it is last.
_OTHERS: Final = (
    ("ACCELERATE_MIXED_PRECISION", "accelerate launch"),
    ("LT_CLI_USED", "fabric run"),
    ("CROSS_SIZE", "deepspeed"),
    ("TORCHELASTIC_RUN_ID", "torchrun"),
)


def refuse_other_launchers() -> None:
    """Raise UserError where this process has siblings that the job knows nothing of."""
    size = int(os.environ.get("WORLD_SIZE") or 1)
    if not os.environ.get("MS_ROLE") and size > 1:
        name = next((f", {name}" for variable, name in _OTHERS if variable in os.environ), "")
        raise UserError(
            f"this process was told to be one of several (WORLD_SIZE) by another launcher{name}; "
            f"start the program with `holdfast run --nproc-per-node {size} program.py`"
        )
    if _is_spawned():
        raise UserError(
            "this process was started by torch.multiprocessing (mp.spawn), and nobody could "
            "replace it; call the function itself, with RANK and WORLD_SIZE of os.environ, and "
            "start the program with `holdfast run --nproc-per-node N program.py`"
        )


def _is_spawned() -> bool:
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "_wrap" and code.co_filename.endswith("torch/multiprocessing/spawn.py"):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False
