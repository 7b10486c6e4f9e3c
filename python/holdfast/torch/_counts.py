"""Keep what an `enumerate()` around `state.steps(...)` counts right.

It counts the batches that it is given: those of steps that are made again once more, and in a
process that replaces another not those of its predecessor. Its count lies in one word of it, behind
what every object begins with; that is compared with what it says of itself before it is written.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from holdfast.torch._forms import LIBRARIES, OURS
from holdfast.torch._frames import callers, offset_of

_Place = tuple[str, int, int]  # A file, a function's first line, an instruction.
_WRONG: Final = (
    "the `enumerate` around state.steps(...) counts otherwise where a step is made again and in a "
    "process that replaces another, which then does different things; take `state.batch`, the "
    "batches of this epoch before this one, or `state.n`, the steps"
)


class Counts:
    """Of all loops of a program. Not thread-safe."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Know none. `say`: where warnings go."""
        self._say = say
        self._said = False
        self._places: dict[_Place, bool] = {}  # Where loops are: whether one counts their batches.
        self._began: dict[_Place, list[int]] = {}  # With what, until its second batch shows that.

    def objects(self) -> Any:
        """Return what an image has to hold of this."""
        return self._places.copy()

    def restore(self, objects: Any) -> None:
        """Know what a predecessor has seen."""
        self._places = {**objects, **self._places}

    def see(self, frame: FrameType | None, done: int | None) -> None:
        """Before a batch is given to the loop around a generator, which has this `frame`.

        `done`: how many a predecessor's had, once in a process that replaces one. None: unknown.
        """
        place = _place_of(frame)
        counts = self._places.get(place)
        if done != 0:
            is_counted = counts is not False and counting(frame)
            if is_counted and not (counts and done and count_on(frame, done)):
                self._warn()
            return
        if counts is not None:
            return
        now = [count for _, count in counting(frame)]
        began = self._began.get(place)
        if not now:
            self._places[place] = False
        elif began is not None or _is_given_all(frame):
            # A generator of the program's own may give one for several.
            self._places[place] = began is None or [n + 1 for n in began] == now
            if not self._places[place]:
                self._warn()
        else:
            self._began[place] = now

    def again(self, frame: FrameType | None) -> None:
        """Before it is given the same batch again."""
        if self._places.get(_place_of(frame)) and not count_on(frame, -1):
            self._warn()

    def _warn(self) -> None:
        if not self._said:
            self._said = True
            self._say(_WRONG)


def batches_of(passes: int, length: int | None, more: int) -> int | None:
    """Return how many some passes of a length have, and more. None: it is unknown."""
    return more if not passes else None if length is None else passes * length + more


def counting(frame: FrameType | None) -> list[tuple[Any, int]]:
    """Return who counts what a generator gives, or one that goes through it; and its count.

    `frame` is that of the generator; one that goes through it is a progress bar's, for example.
    """
    frames = {id(f) for f in _generators(frame)}
    found: list[tuple[Any, int]] = []
    for thing in [thing for thing in gc.get_objects() if type(thing) is enumerate]:
        parts: Any = thing.__reduce__()[1]
        if id(getattr(parts[0], "gi_frame", None)) in frames:
            found.append((thing, int(parts[1])))
    return found


def count_on(frame: FrameType | None, by: int) -> bool:
    """Have all of them count on. False: this Python's can not be told to."""
    for thing, count in counting(frame):
        word = ctypes.c_ssize_t.from_address(id(thing) + object.__basicsize__)
        if word.value != count:
            return False
        word.value = count + by
        if thing.__reduce__()[1][1] != count + by:
            word.value = count
            return False
    return True


def _generators(frame: FrameType | None) -> Iterator[FrameType]:
    for f in callers(frame):
        if not f.f_code.co_flags & inspect.CO_GENERATOR:
            return
        yield f


def _is_given_all(frame: FrameType | None) -> bool:
    files = (f.f_code.co_filename for f in _generators(frame))
    return all(file.startswith((OURS, *LIBRARIES)) for file in files)


def _place_of(frame: FrameType | None) -> _Place:
    for f in callers(frame):
        if not f.f_code.co_flags & inspect.CO_GENERATOR:
            return f.f_code.co_filename, f.f_code.co_firstlineno, offset_of(f)
    return "", 0, 0
