"""What Model.eval returns between calls of Model.train, kept for a process that passes those calls.

That one has later weights there. A program that decides by what it evaluates (stops early, lowers a
rate) has to decide as its predecessor did, so it is given the same numbers.
"""

from __future__ import annotations

import pickle
from typing import Any, Final

import numpy as np

from holdfast.mindspore._outputs import Packed, pack, unpack

_MOST_BYTES: Final = 64 << 10  # It is written at every step.


def _is_data(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_data, value))
    if type(value) is dict:
        return all(map(_is_data, [*value, *value.values()]))
    if isinstance(value, np.ndarray):
        return value.dtype.kind not in "OV"
    return isinstance(value, (bool, int, float, str, type(None), np.generic, Packed))


class Evaluated:
    """The results of one program, by the call of Model.train that they came after."""

    def __init__(self) -> None:
        """There is none yet."""
        self._kept: dict[tuple[int, int], Any] = {}
        self._last = 0, 0
        self.packed = b""  # All of them, for the state.

    def next(self, call: int) -> tuple[int, int]:
        """Return the place of the next one, which comes after a call."""
        self._last = call, self._last[1] + 1 if self._last[0] == call else 1
        return self._last

    def load(self, packed: bytes) -> None:
        """Take what a predecessor has kept."""
        self.packed, self._kept = packed, pickle.loads(packed) if packed else {}

    def keep(self, place: tuple[int, int], result: Any) -> str:
        """Keep a result; return why it is not kept, if it is not."""
        value = pack(result)
        if not _is_data(value):
            return "is not only numbers, texts and arrays"
        packed = pickle.dumps({**self._kept, place: value}, pickle.HIGHEST_PROTOCOL)
        if len(packed) > _MOST_BYTES:
            return f"is beyond the {_MOST_BYTES >> 10} KiB that are kept"
        self._kept[place], self.packed = value, packed
        return ""

    def has(self, place: tuple[int, int]) -> bool:
        """Return whether a result was kept."""
        return place in self._kept

    def get(self, place: tuple[int, int]) -> Any:
        """Return a result that was kept, as the program's own."""
        return unpack(self._kept[place])
