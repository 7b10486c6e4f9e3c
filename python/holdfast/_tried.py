"""The versions that Holdfast was tried with: tried.json, which tools/versions writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

FILE: Final = Path(__file__).parent / "tried.json"
WORKS: Final = "works"
NO_WHEEL: Final = "no wheel"  # PyPI has none of this version for this Python.
WHERE: Final = {
    "torch": "docs/reference/pytorch.md#versions",
    "mindspore": "docs/mindspore.md#versions",
}


def cells(framework: str) -> list[dict[str, Any]]:
    """Return what was tried: a version with a Python, and how that came out."""
    found = json.loads(FILE.read_text())
    return [cell for cell in found if cell["framework"] == framework]


def order(version: str) -> tuple[int, ...]:
    """Return what versions are sorted by: their numbers, without what follows them ("+cpu")."""
    parts = version.split("+")[0].split(".")
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in parts)


def minor(version: str) -> str:
    """Return the first two numbers of a version, after which torch drops names."""
    return ".".join(str(number) for number in order(version)[:2])


def working(framework: str) -> list[str]:
    """Return the minor versions that work, from the oldest to the newest."""
    found = {minor(cell["version"]) for cell in cells(framework) if cell["result"] == WORKS}
    return sorted(found, key=order)


def refusal(framework: str, version: str) -> str | None:
    """Return why a version can not be used; None: it was found to work, or was not tried.

    A version that is older than all that were tried is not used: names that Holdfast needs may be
    missing there, and nobody would know.
    """
    tried, works = cells(framework), working(framework)
    for cell in tried:
        same = minor(cell["version"]) == minor(version) and cell["result"] not in (WORKS, NO_WHEEL)
        if same and cell["python"].split(".")[:2] == [str(n) for n in sys.version_info[:2]]:
            return (
                f"{framework} {version} does not work with Holdfast on Python {cell['python']}: "
                f"{cell['result']}; these do: {', '.join(works)} ({WHERE[framework]})"
            )
    if works and order(version)[:2] < order(works[0]):
        return (
            f"{framework} {version} is older than the oldest that Holdfast was tried with; take "
            f"one of these: {', '.join(works)} ({WHERE[framework]})"
        )
    return None
