"""Import modules of MindSpore, untyped, so that their private parts can be replaced."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

COMPILERS: Final = ("mindspore.graph.api", "mindspore.common.api")


def imported(name: str) -> Any:
    """Return a module by its name."""
    return import_module(name)


def either(names: tuple[str, str]) -> Any:
    """Return the first of two modules that exists: the name has changed between versions."""
    try:
        return imported(names[0])
    except ImportError:
        return imported(names[1])
