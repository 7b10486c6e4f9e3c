"""Contents of callbacks that are too large to write at each step, such as the best weights.

They lie in files beside the state, on tmpfs as the state is. A step writes only the files whose
contents have changed, and the state holds the numbers of the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

MOST_BYTES: Final = 64 << 20  # In one process. Each step compares all of it.


class Form(NamedTuple):
    """Stands for the contents of an attribute, which lie in the file with this number."""

    number: int


class Bulk:
    """The files of one rank."""

    def __init__(self, folder: Path, rank: int, not_theirs: Iterable[Any]) -> None:
        """`not_theirs`: parameters that are kept elsewhere, even if a callback holds them too."""
        self._folder, self._stem = folder, f"mindspore-bulk-{rank}-"
        self.others = {id(parameter) for parameter in not_theirs}
        there = [p.name.removeprefix(self._stem) for p in folder.glob(self._stem + "*")]
        self._files = {int(number) for number in there}  # At first those of a predecessor.
        self._next = max(self._files, default=0) + 1
        self._kept: dict[Any, tuple[Form, bytes]] = {}  # By attribute.
        self._recent: set[int] = set(self._files)  # Files of the step before.

    def take(self, key: Any, packed: bytes) -> Form | None:
        """Return the Form that stands for a value; None: there is no room."""
        last = self._kept.pop(key, None)
        if len(packed) + sum(len(held) for _, held in self._kept.values()) > MOST_BYTES:
            return None
        if last is None or last[1] != packed:
            last = Form(self._next), packed
            self._next += 1
            try:
                self._path(last[0].number).write_bytes(packed)
            except OSError:
                return None
            self._files.add(last[0].number)
        self._kept[key] = last
        return last[0]

    def _path(self, number: int) -> Path:
        return self._folder / f"{self._stem}{number}"

    def read(self, form: Form) -> bytes:
        """Return the value that a Form stands for."""
        return self._path(form.number).read_bytes()

    def lend(self, folder: Path) -> None:
        """Link the files into another folder, so that they outlast the steps that use them."""
        for number in self._files:
            with contextlib.suppress(OSError):  # Then the rehearsal says what it lacks.
                (folder / self._path(number).name).hardlink_to(self._path(number))

    def begin(self) -> None:
        """Begin a call of Model.train, which has other callbacks."""
        self._kept = {}

    def sweep(self, lasting: set[int]) -> None:
        """Drop files that neither the last step nor the step before uses, except `lasting`."""
        recent = {form.number for form, _ in self._kept.values()}
        for number in self._files - recent - self._recent - lasting:
            with contextlib.suppress(OSError):
                self._path(number).unlink()
            self._files.discard(number)
        self._recent = recent


current: Bulk | None = None  # This process's, once its training has begun.
