"""Take modules of MindSpore whose insides are replaced, which their types do not show."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def imported(name: str) -> Any:
    """Return a module by its name."""
    return import_module(name)
