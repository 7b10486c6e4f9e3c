"""What the program was told between passes over data, so that a replacement is told the same.

A replacement runs again what comes between the passes that are done, an evaluation as a rule, while
the others are past it. Its decisions (the best accuracy so far, whether to stop early) have to come
out as theirs. Each rank writes the results of its program's own collectives there into a file of
the job's folder; its successor reads it. A result counts once a later step is done, for then every
rank has it: so all take the same from their files where all were started again.
"""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Final

from torch import Tensor

from holdfast.torch._early import as_bytes, fill

_LIMIT: Final = 1 << 26  # Bytes of a rank's file, which is memory.
_Key = tuple[int, str, int]


class Told:
    """The results of one rank. Not thread-safe."""

    def __init__(self) -> None:
        """Know nothing and write nothing, until open()."""
        self._path: Path | None = None
        self._room = _LIMIT
        self._version = 0  # Of the last step that was done when this process began.
        self._known: dict[_Key, tuple[int, bytes]] = {}
        self._pass: int | None = 0  # None: within one, where nothing is made again.
        self._made: Counter[str] = Counter()

    def open(self, folder: Path, rank: int, version: int) -> None:
        """Read what a predecessor was told; `version`: with which this process begins."""
        self._path, self._version = folder / f"told-{rank}", version
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            try:
                while True:
                    key, then, raw = pickle.load(file)
                    self._known[key] = (then, raw)
            except (EOFError, pickle.UnpicklingError):
                pass  # It was killed while it wrote.
        self._room -= self._path.stat().st_size
        with self._path.open("wb") as file:  # Whole, and without what was never done.
            for key, (then, raw) in self._known.items():
                if then < version:
                    pickle.dump((key, then, raw), file)

    def leave_pass(self, number: int) -> None:
        """Come to what is between pass `number` and the next."""
        self._pass = number + 1
        self._made.clear()

    def enter_pass(self) -> None:
        """Make a step: from here on this process is where the others are."""
        self._pass = None
        self._known.clear()

    def close(self) -> None:
        """Write no more, and leave nothing: what follows has no place between two passes."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._path = None
        self._known.clear()

    @property
    def knows(self) -> bool:
        """Whether there is anything to be told again."""
        return bool(self._known)

    def again(self, label: str, out: Tensor) -> bool:
        """Fill `out` with what the next exchange of a group gave, if that is known."""
        entry = self._known.get((self._pass or 0, label, self._made[label]))
        if entry is None or entry[0] >= self._version:
            return False
        if len(entry[1]) != out.nbytes:  # The program goes another way.
            self._known.clear()
            return False
        self._made[label] += 1
        fill(out, entry[1])
        return True

    def note(self, label: str, out: Tensor, version: int) -> None:
        """Write what the next exchange of a group gave, after step `version`."""
        if self._path is None or self._pass is None:
            return
        key = (self._pass, label, self._made[label])
        self._made[label] += 1
        self._room -= out.nbytes
        if self._room < 0:  # Nor anything that follows: they are numbered.
            return
        with self._path.open("ab") as file:
            file.write(pickle.dumps((key, version, as_bytes(out))))
