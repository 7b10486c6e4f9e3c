"""What finished calls of Model.train left, for a process that passes over these calls.

A successor does not repeat finished calls. It already has later weights, and its callbacks were not
called. So Model.eval between two such calls returns its former result, and the callbacks get the
contents that they had when their call ended.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.mindspore import _bulk, _callbacks
from holdfast.mindspore._data import NoDataError, dumps

_MOST_RESULTS: Final = 64 << 10  # Bytes, written at every step.
_MOST_HELD: Final = 256 << 10  # The same.


class Evaluated:
    """Results of Model.eval, by the call of Model.train that came before each."""

    def __init__(self) -> None:
        """Begin without results."""
        self.kept: dict[tuple[int, int], bytes] = {}  # Pickled, by call and number after it.
        self._last = 0, 0
        self.packed = b""  # All results, for the state.

    def next(self, call: int) -> tuple[int, int]:
        """Return the key of the next result: the call before it, and its number after that call."""
        self._last = call, self._last[1] + 1 if self._last[0] == call else 1
        return self._last

    def load(self, packed: bytes) -> None:
        """Take what a predecessor has kept."""
        self.packed, self.kept = packed, pickle.loads(packed) if packed else {}

    def keep(self, place: tuple[int, int], result: Any) -> str:
        """Keep a result. If it can not be kept, return why."""
        try:
            value = dumps(result)
        except NoDataError:
            return "is not only numbers, texts and arrays"
        packed = pickle.dumps({**self.kept, place: value}, pickle.HIGHEST_PROTOCOL)
        if len(packed) > _MOST_RESULTS:
            return f"is beyond the {_MOST_RESULTS >> 10} KiB that are kept"
        self.kept[place], self.packed = value, packed
        return ""


class Former:
    """Contents of the callbacks of calls that have ended, as they were at their call's end."""

    def __init__(self) -> None:
        """Begin without calls."""
        self._kept: dict[tuple[int, int], bytes] = {}  # By call and the callback's index in it.
        self.packed = b""  # All contents, for the state.
        self.files: set[int] = set()  # Numbers of files with large contents.

    def load(self, packed: bytes) -> None:
        """Take what a predecessor has kept."""
        self.packed, self._kept = packed, pickle.loads(packed) if packed else {}
        self._note()

    def give_back(self, call: int, callbacks: Sequence[Any]) -> None:
        """Give a passed call's callbacks the contents that they had at the end of the call."""
        for i, callback in enumerate(callbacks):
            if kept := self._kept.get((call, i)):
                _callbacks.give_back(callback, pickle.loads(kept))

    def keep(self, call: int, callbacks: Sequence[Any], say_once: Callable[[str], None]) -> None:
        """Keep the contents of the callbacks of a call that has ended."""
        for i, callback in enumerate(callbacks):
            held = _callbacks.attributes(callback, say_once)
            self._kept[call, i] = pickle.dumps(held, pickle.HIGHEST_PROTOCOL)
        while sum(map(len, self._kept.values())) > _MOST_HELD:
            del self._kept[min(self._kept)]
            say_once(
                f"what callbacks of former calls of Model.train hold is beyond "
                f"{_MOST_HELD >> 10} KiB together, so of the oldest it is not kept: a process that "
                "replaces another, and passes these calls, sees them as they begin"
            )
        self._note()
        self.packed = pickle.dumps(self._kept, pickle.HIGHEST_PROTOCOL)

    def _note(self) -> None:
        held = [value for kept in self._kept.values() for value in pickle.loads(kept).values()]
        self.files = {value.number for value in held if isinstance(value, _bulk.Form)}
