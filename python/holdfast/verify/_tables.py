"""Compares the tables of parameter servers that two runs have saved (table/saved.h)."""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

MANIFEST: Final = "tables.json"
# The name of a file of rows has the run's number, so it is another one in each run.
ROWS: Final = re.compile(r"(^|/)table-\d+\.\d+-of-\d+\.step-\d+\.run-\d+\.safetensors$")
_HEADER: Final = 1 << 20  # Most bytes, as in table/saved.cc.
_SHOWN: Final = 1 << 22  # Most rows of a table of which the first other one is looked for.


@dataclass(frozen=True)
class _Part:
    """A file: what one server had of a table."""

    path: Path
    behind: int  # Where its tensors begin.
    header: dict[str, Any]

    def rows(self) -> Iterator[tuple[int, bytes]]:
        """Yield each row's key, and a digest of its values and its optimizer's state."""
        parts = [self._tensor(name) for name in ("keys", "rows", "state") if name in self.header]
        for key, *values in zip(*parts):
            yield struct.unpack("<Q", key)[0], hashlib.blake2b(b"".join(values)).digest()[:8]

    def _tensor(self, name: str) -> Iterator[bytes]:
        begin, end = self.header[name]["data_offsets"]
        count = self.header["keys"]["shape"][0]
        with open(self.path, "rb") as file:
            file.seek(self.behind + begin)
            for _ in range(count):
                yield file.read((end - begin) // count)


@dataclass(frozen=True)
class _Table:
    what: str  # Its specification.
    updates: str  # That its optimizer has counted.
    count: int  # Of rows.
    digest: int  # The sum of those of all rows, so their order does not matter.


def _read(path: Path) -> _Part:
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > _HEADER:
            raise ValueError(f"{path} is no file of saved tables")
        return _Part(path, 8 + length, json.loads(file.read(length)))


def _parts(folder: Path) -> dict[str, list[_Part]]:
    if not (folder / MANIFEST).exists():
        return {}
    manifest = json.loads((folder / MANIFEST).read_text())
    return {
        table["name"]: [_read(folder / name) for name in table["files"]]
        for table in manifest["tables"]
    }


def _sum(parts: list[_Part]) -> _Table:
    about = [part.header["__metadata__"] for part in parts]
    return _Table(
        about[0]["table_of"],
        about[0]["updates"],
        sum(part.header["keys"]["shape"][0] for part in parts),
        sum(int(one["digest"]) for one in about) % (1 << 64),
    )


def differing(clean: Path, other: Path) -> list[tuple[str, str]]:
    """Return each table that differs in two folders of saved tables, and how.

    Errors: OSError, ValueError, LookupError, TypeError: a folder is no such one.
    """
    mine, theirs = _parts(clean), _parts(other)
    found = []
    for name in {**mine, **theirs}:
        if name not in mine or name not in theirs:
            found.append((name, "was saved in one of the runs only"))
        elif (was := _sum(mine[name])) != (now := _sum(theirs[name])):
            found.append((name, _how(was, now, mine[name], theirs[name])))
    return found


def _how(was: _Table, now: _Table, mine: list[_Part], theirs: list[_Part]) -> str:
    if was.what != now.what:
        return f"is described as {now.what}, undisturbed {was.what}"
    if (was.count, was.digest) == (now.count, now.digest):
        return f"has counted {now.updates} updates, undisturbed {was.updates}"
    if max(was.count, now.count) > _SHOWN:
        return f"holds other rows: {now.count}, undisturbed {was.count}"
    before = dict(row for part in mine for row in part.rows())
    after = dict(row for part in theirs for row in part.rows())
    keys = sorted(key for key in {**before, **after} if before.get(key) != after.get(key))
    of = f"{len(keys)} of {len({**before, **after})} rows"
    return f"holds another row of id {keys[0]} ({of} differ)" if keys else "holds other rows"
