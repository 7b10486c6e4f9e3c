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
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Final

from torch import Tensor

from holdfast.torch._early import as_bytes, fill
from holdfast.torch._files import write_whole

_LIMIT: Final = 1 << 26  # Bytes of a rank's file, which is memory.
_Key = tuple[int | None, str, int]


class Told:
    """The results of one rank. Not thread-safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Know nothing and write nothing, until open(). `say`: where warnings go."""
        self._say = say
        self._own_loop = False
        self._path: Path | None = None
        self._room = _LIMIT
        self._known: dict[_Key, tuple[int, bytes]] = {}
        self._pass: int | None = 0  # None: within one, where nothing is made again.
        self._made: Counter[str] = Counter()

    def open(self, path: Path, version: int) -> None:
        """Read what a predecessor was told; `version`: with which this process begins."""
        self._path = path
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            try:
                while True:
                    key, then, raw = pickle.load(file)
                    self._known[key] = (then, raw)
            except (EOFError, pickle.UnpicklingError):
                pass  # It was killed while it wrote.
        self._known = {key: told for key, told in self._known.items() if told[0] < version}
        records = [pickle.dumps((key, then, raw)) for key, (then, raw) in self._known.items()]
        whole = b"".join(records)  # Without what was never done.
        write_whole(self._path, whole)
        self._room -= len(whole)

    def leave_pass(self, number: int) -> None:
        """Come to what is between pass `number` and the next."""
        self._pass = number + 1
        self._made.clear()

    def enter_pass(self) -> None:
        """Make a step: from here on this process is where the others are."""
        self._pass = None
        self._known.clear()

    def see_own_loop(self) -> None:
        """Take note that the program makes its steps in a loop of its own."""
        self._own_loop = True

    def digest(self) -> bytes:
        """Return 8 bytes that are the same where ranks were told the same number of things."""
        keys = sorted(key for key in self._known if key[1] == "world")
        return blake2b(repr(keys).encode(), digest_size=8).digest()

    def forget(self) -> None:
        """Be told nothing again."""
        self._known.clear()

    @property
    def knows(self) -> bool:
        """Whether there is anything to be told again."""
        return bool(self._known)

    def again(self, label: str, out: Tensor) -> bool:
        """Fill `out` with what the next exchange of a group gave, if that is known."""
        entry = self._known.get((self._pass, label, self._made[label]))
        if entry is None:
            return False
        self._made[label] += 1
        if len(entry[1]) == out.nbytes:
            fill(out, entry[1])
        return True  # Else the objects are this rank's own, as a time, which stay as they are.

    def note(self, label: str, out: Tensor, version: int) -> None:
        """Write what the next exchange of a group gave, after step `version`."""
        if self._path is None:
            return
        if self._pass is None:
            if self._own_loop:  # What its place before such a step was told is that of many.
                self._path.unlink(missing_ok=True)
                self._path = None
            return
        key = (self._pass, label, self._made[label])
        self._made[label] += 1
        record = pickle.dumps((key, version, as_bytes(out)))
        if len(record) > self._room >= 0:
            self._say(
                f"what is exchanged between passes over data is more than {_LIMIT >> 20} MiB; a "
                "process that replaces another answers what follows from its own values"
            )
            self._room = -1  # Nor anything that follows: they are numbered.
        if self._room < 0:
            return
        self._room -= len(record)
        try:
            with self._path.open("ab") as file:
                file.write(record)
        except OSError as error:  # The folder is memory of this host.
            self._say(f"what is exchanged between passes can not be kept any more: {error}")
            self._room = -1
