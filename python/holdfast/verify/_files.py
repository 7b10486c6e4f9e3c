"""Compares the files that two runs made."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.verify import _tables
from holdfast.verify._mirror import digest_of

_TEXT: Final = 4 << 20  # Most bytes of a text file that is compared by lines.
_PACKED: Final = (b"PK", b"\x80", b"\x93NUMPY")  # How files of torch, pickle and NumPy begin.


@dataclass(frozen=True)
class Filed:
    """A file that differs."""

    name: str
    how: str


def select(names: set[str], globs: tuple[str, ...]) -> set[str]:
    """Return the files to compare: those that a pattern names, or all if there is no pattern."""
    if not globs:
        return names
    return {name for name in names if any(_matches(name, glob) for glob in globs)}


def _matches(name: str, glob: str) -> bool:
    return fnmatch.fnmatch(name, glob) or fnmatch.fnmatch(name, os.path.normpath(glob))


def compare(
    clean: dict[str, Path], other: dict[str, Path], globs: tuple[str, ...], noise: set[str]
) -> list[Filed]:
    """Return the files that differ."""
    found = []
    for name in sorted(select(clean.keys() | other.keys(), globs) - noise):
        if _tables.ROWS.search(name):
            continue  # The manifest beside it stands for it.
        a, b = clean.get(name), other.get(name)
        if a is None:
            if globs:
                found.append(Filed(name, "was not there, now is"))
        elif b is None:
            found.append(Filed(name, "was there, now is not"))
        elif digest_of(a) != digest_of(b):
            how = _how(a, b, strict=bool(globs))
            if how:
                found.append(Filed(name, how))
    return found


def _how(a: Path, b: Path, *, strict: bool) -> str:
    """Return how two files with different bytes differ; empty: their contents are equal."""
    if a.name == b.name == _tables.MANIFEST:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            tables = _tables.differing(a.parent, b.parent)
            return f"names a table `{tables[0][0]}` that {tables[0][1]}" if tables else ""
    with open(a, "rb") as file:
        head = file.read(8)
    if head.startswith(_PACKED):
        mine, theirs = _unpack(a, b)
        if mine is not None and theirs is not None:
            names = [n for n in {**mine, **theirs} if mine.get(n) != theirs.get(n)]
            return f"holds another `{names[0]}`" + _more(names) if names else ""
    if a.stat().st_size <= _TEXT and b.stat().st_size <= _TEXT:
        try:
            was, now = a.read_text().splitlines(), b.read_text().splitlines()
        except UnicodeDecodeError:
            return "holds other bytes"
        if strict or set(was) != set(now):
            return _first_line(was, now, strict=strict)
        return ""  # A replayed step may write its line again.
    return "holds other bytes"


def _first_line(was: list[str], now: list[str], *, strict: bool) -> str:
    if not strict:
        mine, theirs = set(was), set(now)
        was = [line for line in was if line not in theirs]
        now = [line for line in now if line not in mine]
    for number in range(max(len(was), len(now))):
        a = was[number] if number < len(was) else "nothing"
        b = now[number] if number < len(now) else "nothing"
        if a != b:
            return f"said {a[:120]!r}, then {b[:120]!r}"
    return "holds other line ends"


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""


def _unpack(*paths: Path) -> list[dict[str, str] | None]:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.verify._unpack", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        cwd=paths[0].parent,
    )
    found: list[dict[str, str] | None] = [None] * len(paths)
    for number, line in enumerate(done.stdout.splitlines()[: len(paths)]):
        found[number] = json.loads(line)
    return found
