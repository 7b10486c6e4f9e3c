"""The versions of Python and of the packages that have made an image, which holds them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping

Makers = dict[str, str]


def makers() -> Makers:
    """Return the versions that this process has, by name."""
    found = {"Python": platform.python_version()}
    for name in ("torch", "mindspore", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = str(version)  # That of torch is of a class of its own.
    return found


def change_of(was: Mapping[str, str]) -> str:
    """Return words for the versions that this process has otherwise. Empty: none differs."""
    now = makers()
    changed = [name for name, version in was.items() if now.get(name, version) != version]
    return ", ".join(f"{name} {was[name]} (this is {now[name]})" for name in changed)
