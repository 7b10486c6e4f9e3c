"""What callbacks held when the call of Model.train that they were of ended.

A process that passes this call gives it to its own: a program looks at them between two calls. It
is written down once, at the end of the call; a step only carries the bytes along.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

from holdfast.mindspore import _bulk, _callbacks

_MOST_BYTES: Final = 256 << 10  # Of all calls together: it is written at every step.


class Former:
    """The callbacks of the calls of one program that have ended."""

    def __init__(self) -> None:
        """There is none yet."""
        self._kept: dict[tuple[int, int], bytes] = {}  # By call and place in it; oldest first.
        self._last: dict[tuple[int, int], weakref.ref[Any]] = {}  # Those that the program has yet.
        self.packed = b""  # All of them, for the state.
        self._files: dict[tuple[int, int], set[int]] = {}  # Which large things lie in.

    @property
    def files(self) -> set[int]:
        """Return the numbers of all files that are needed."""
        return {number for several in self._files.values() for number in several}

    def load(self, packed: bytes) -> None:
        """Take what a predecessor has kept."""
        self.packed, self._kept = packed, pickle.loads(packed) if packed else {}
        self._files = {key: _bulk.numbers(pickle.loads(kept)) for key, kept in self._kept.items()}

    def give_back(self, call: int, callbacks: Sequence[Any]) -> None:
        """Let the callbacks of a call that is passed hold what they held at its end."""
        for i, callback in enumerate(callbacks):
            if kept := self._kept.get((call, i)):
                _callbacks.give_back(callback, pickle.loads(kept))
        self._note(call, callbacks)

    def keep(self, call: int, callbacks: Sequence[Any], say_once: Callable[[str], None]) -> None:
        """Keep what the callbacks of a call hold that has ended."""
        for i, callback in enumerate(callbacks):
            held = _callbacks.attributes(callback, say_once)
            self._kept[call, i] = pickle.dumps(held, pickle.HIGHEST_PROTOCOL)
            self._files[call, i] = _bulk.numbers(held)
        self._note(call, callbacks)
        self._shrink(say_once)
        self.packed = pickle.dumps(self._kept, pickle.HIGHEST_PROTOCOL)

    def _note(self, call: int, callbacks: Sequence[Any]) -> None:
        now = {id(callback) for callback in callbacks}
        rest = {k: of for k, of in self._last.items() if of() is not None and id(of()) not in now}
        new = {(call, i): weakref.ref(callback) for i, callback in enumerate(callbacks)}
        self._last = rest | new

    def _shrink(self, say_once: Callable[[str], None]) -> None:
        """Drop the oldest; first of those that the program has no more, or that came again."""
        for key in sorted(self._kept, key=lambda key: (key in self._last, key)):
            size, bulk = sum(map(len, self._kept.values())), _bulk.current
            large = bulk.bytes_of(self.files) if bulk else 0
            if size <= _MOST_BYTES and large <= _bulk.MOST_FORMER:
                return
            if size <= _MOST_BYTES and not self._files[key]:
                continue
            del self._kept[key], self._files[key]
            say_once(
                f"what callbacks of former calls of Model.train hold is beyond "
                f"{_MOST_BYTES >> 10} KiB together (arrays and the like: "
                f"{_bulk.MOST_FORMER >> 20} MiB), so of the oldest it is not kept: a process "
                "that replaces another, and passes these calls, sees them as they begin"
            )
