"""What the program was told between passes over data, so that a replacement is told the same.

A replacement runs again what comes between the passes that are done, an evaluation as a rule, while
the others are past it. Its decisions (the best accuracy so far, whether to stop early) have to come
out as theirs. Each rank writes the results of its program's own collectives there into a file of
the job's folder; its successor reads it. A result counts once a later step is done, for then every
rank has it: so all take the same from their files where all were started again.

In a loop of the program's own nobody passes over anything: a replacement asks where it stands, and
what its place was told elsewhere in that loop is no answer.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

from torch import Tensor

from holdfast.torch._early import as_bytes, fill
from holdfast.torch._places import Place, are_in_one_loop, place_of
from holdfast.torch._records import Records

_Key = tuple[int | None, str, int]


class Told:
    """The results of one rank. Not thread-safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Know nothing and write nothing, until open(). `say`: where warnings go."""
        self._records = Records(
            say,
            "what is exchanged between passes over data is {limit}; a process that replaces "
            "another answers what follows from its own values",
        )
        self._own_loop = False
        self._pass: int | None = 0  # None: within one, where nothing is made again.
        self._made: Counter[str] = Counter()
        self._asked_at: set[Place] = set()  # Before the first step.

    def open(self, path: Path, version: int) -> None:
        """Read what a predecessor was told; `version`: with which this process begins."""
        self._records.open(path, version)

    def leave_pass(self, number: int) -> None:
        """Come to what is between pass `number` and the next."""
        self._pass = number + 1
        self._made.clear()

    def enter_pass(self) -> None:
        """Make a step: from here on this process is where the others are."""
        self._pass = None
        self._asked_at.clear()
        self._records.known.clear()

    def see_own_loop(self) -> None:
        """Take note that the program makes its steps in a loop of its own, from where this is."""
        self._own_loop = True
        if self._asked_at:
            here = place_of(sys._getframe())
            if any(are_in_one_loop(before, here) for before in self._asked_at):
                self._records.close()

    def digest(self) -> bytes:
        """Return 8 bytes that are the same where ranks were told the same number of things."""
        keys = sorted(key for key in self._records.known if key[1] == "world")
        return blake2b(repr(keys).encode(), digest_size=8).digest()

    def forget(self) -> None:
        """Be told nothing again."""
        self._records.known.clear()

    @property
    def knows(self) -> bool:
        """Whether there is anything to be told again."""
        return bool(self._records.known)

    @property
    def has_asked(self) -> bool:
        """Whether the program has exchanged anything since the last pass."""
        return bool(self._made)

    def again(self, label: str, out: Tensor) -> bool:
        """Fill `out` with what the next exchange of a group gave, if that is known."""
        entry = self._records.known.get((self._pass, label, self._made[label]))
        if entry is None:
            return False
        self._made[label] += 1
        if len(entry) == out.nbytes:
            fill(out, entry)
        return True  # Else the objects are this rank's own, as a time, which stay as they are.

    def note(self, label: str, out: Tensor, version: int) -> None:
        """Write what the next exchange of a group gave, after step `version`."""
        if not self._records.is_open:
            return
        if self._pass is None:
            if self._own_loop:  # What its place before such a step was told is that of many.
                self._records.close()
            return
        if not self._pass:
            self._asked_at.add(place_of(sys._getframe()))
        key = (self._pass, label, self._made[label])
        self._made[label] += 1
        self._records.add(key, version, as_bytes(out))
