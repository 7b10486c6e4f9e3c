"""What callbacks hold that is too large to be written at each step: the best weights, a history.

Arrays, tensors, parameters and long lists of numbers lie in files of their own beside the state
(in memory, as it is). A step looks whether they have changed, and writes those anew that have; the
state has their numbers. A list that only grows is kept in pieces, of which the last is the state's.
"""

from __future__ import annotations

import contextlib
import pickle
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from holdfast.mindspore._image import compare, memory
from holdfast.mindspore._outputs import FLAT

_PIECE: Final = 4096  # Items of a list that lie in a file together.
_MOST_BYTES: Final = 64 << 20  # Of one process's: all of it is compared at each step.
_MOST_PARTS: Final = 4096
# Larger arrays that have stayed as they are for so many steps, such as the samples that a callback
# evaluates with, are looked at in every so many.
_LARGE: Final = 8 << 20
_CALM_AFTER, _SELDOM = 64, 16
MOST_FORMER: Final = 256 << 20  # Besides, of calls that have ended.
_PLAIN: Final = (bool, int, float, str, bytes, type(None), np.generic)
_ITEMS: Final = FLAT | {str, bytes}


class Part(NamedTuple):
    """In place of something in a file."""

    number: int
    kind: str  # "array", "tensor", "parameter" or "items".
    about: Any = None  # Type of a tensor; name and requires_grad of a parameter.


class Items(NamedTuple):
    """In place of a long list."""

    pieces: list[Part]
    rest: list[Any]


class Form(NamedTuple):
    """In place of what an attribute holds."""

    value: Any


class TooLargeError(TypeError):
    """It is data, but too much of it."""


class _Kept(NamedTuple):
    part: Part
    value: Any  # An array of the file's memory, or the items.
    bytes: int
    of: Any = None  # The program's, if that is large.
    steps: int = 0  # For which it has stayed as it is.


class Bulk:
    """The files of one rank."""

    def __init__(self, folder: Path, rank: int, not_theirs: Iterable[Any]) -> None:
        """`not_theirs`: parameters that are kept otherwise, wherever a callback has them too."""
        self._folder, self._stem = folder, f"mindspore-bulk-{rank}-"
        self._others = {id(parameter) for parameter in not_theirs}
        there = [p.name.removeprefix(self._stem) for p in folder.glob(self._stem + "*")]
        self._files = {int(number) for number in there}  # A predecessor's, at first.
        self._next = max(self._files, default=0) + 1
        self._kept: dict[Any, _Kept] = {}  # By attribute and place within it.
        self._recent: set[int] = set(self._files)  # Of the step before.

    # ---- Writing ---------------------------------------------------------------------------------

    def take(self, key: Any, value: Any) -> Form:
        """Return what stands for a value; TypeError: it is not such data, or too large."""
        others = {at: kept for at, kept in self._kept.items() if at[0] != key}
        if self._size(value) + sum(kept.bytes for kept in others.values()) > _MOST_BYTES:
            raise TooLargeError
        found: dict[Any, _Kept] = {}
        taken = self._take((key,), value, found)
        self._kept = others | found
        return Form(taken)

    def _size(self, value: Any, depth: int = 8) -> int:
        """Return about how many bytes go to files; TypeError: it is not such data."""
        kind = type(value)
        if isinstance(value, _PLAIN):
            return 0
        if kind is list and len(value) > _PIECE:
            return 32 * len(value) if is_item(value[0]) else not_data()
        if kind in (dict, OrderedDict, list, tuple) and depth and len(value) <= _MOST_PARTS:
            parts = value if kind in (list, tuple) else [*value, *value.values()]
            return sum(self._size(part, depth - 1) for part in parts)
        return int(self._array(value)[0].nbytes)

    def _take(self, at: tuple[Any, ...], value: Any, found: dict[Any, _Kept]) -> Any:
        kind = type(value)
        if isinstance(value, _PLAIN):
            return value
        if kind in (dict, OrderedDict):
            return kind((k, self._take((*at, k), v, found)) for k, v in value.items())
        if kind is list and len(value) > _PIECE:
            return self._items(at, value, found)
        if kind in (list, tuple):
            return kind(self._take((*at, i), v, found) for i, v in enumerate(value))
        array, what, about = self._array(value)
        last = self._kept.get(at)
        same = last is not None and (last.part.kind, last.part.about) == (what, about)
        if array.nbytes <= _LARGE:
            if not (same and _equal(last.value, array)):  # type: ignore[union-attr]
                last = self._write(what, about, array)
        else:
            # Whose memory nothing else gets as long as it is held here.
            steps = last.steps + 1 if last is not None and last.of is value else 0
            seldom = steps > _CALM_AFTER and steps % _SELDOM
            if not (same and (seldom or _equal(last.value, array))):  # type: ignore[union-attr]
                last, steps = self._write(what, about, array), 0
            assert last is not None
            last = last._replace(of=value, steps=steps)
        assert last is not None
        found[at] = last
        return last.part

    def _array(self, value: Any) -> tuple[Any, str, Any]:
        kind = type(value).__name__
        if isinstance(value, np.ndarray):
            if type(value) is not np.ndarray or value.dtype.kind not in "biufcSU":
                raise TypeError
            return np.ascontiguousarray(value).reshape(value.shape), "array", None
        if kind not in ("Tensor", "Parameter") or not hasattr(value, "asnumpy"):
            raise TypeError
        if kind == "Parameter":
            if id(value) in self._others or value.has_init:
                raise TypeError
            return value.asnumpy(), "parameter", (value.name, value.requires_grad)
        return value.asnumpy(), "tensor", str(value.dtype)

    def _items(self, at: tuple[Any, ...], value: list[Any], found: dict[Any, _Kept]) -> Items:
        pieces = []
        for begin in range(0, len(value) - _PIECE, _PIECE):
            place = (*at, begin)
            now, last = value[begin : begin + _PIECE], self._kept.get(place)
            # Items that are the same objects are not looked at.
            if last is None or last.part.kind != "items" or last.value != now:
                if not all(map(is_item, now)):
                    raise TypeError
                last = self._write("items", None, now)
            found[place] = last
            pieces.append(last.part)
        rest = value[len(pieces) * _PIECE :]
        if not all(map(is_item, rest)):
            raise TypeError
        return Items(pieces, rest)

    def _write(self, kind: str, about: Any, value: Any) -> _Kept:
        number, self._next = self._next, self._next + 1
        path = self._folder / f"{self._stem}{number}"
        with path.open("wb") as file:
            if kind == "items":
                pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
            else:
                np.lib.format.write_array(file, value, allow_pickle=False)
            size = file.tell()
        self._files.add(number)
        stored = value if kind == "items" or not value.size else np.load(path, mmap_mode="r")
        return _Kept(Part(number, kind, about), stored, size)

    # ---- Reading ---------------------------------------------------------------------------------

    def read(self, value: Any, like: Any = None) -> Any:
        """Return what a Form, or a part of it, stands for; `like`: what is there now."""
        kind = type(value)
        if kind is Form:
            return self.read(value.value, like)
        if kind is Part:
            return self._read(value, like)
        if kind is Items:
            return [item for piece in value.pieces for item in self._read(piece)] + value.rest
        if kind in (dict, OrderedDict):
            there = like if isinstance(like, dict) else {}
            return kind((k, self.read(v, there.get(k))) for k, v in value.items())
        if kind in (list, tuple):
            several = like if isinstance(like, (list, tuple)) else ()
            return kind(map(self.read, value, chain(several, repeat(None))))
        return value

    def _read(self, part: Part, like: Any = None) -> Any:
        path = self._folder / f"{self._stem}{part.number}"
        if part.kind == "items":
            return pickle.loads(path.read_bytes())
        array = np.load(path)
        if part.kind == "array":
            return array
        import mindspore

        if part.kind == "tensor":
            return mindspore.Tensor(array, getattr(mindspore, part.about.lower()))
        name, requires_grad = part.about
        if isinstance(like, mindspore.Parameter) and like.name == name:
            mine = memory(like)
            if (mine.shape, mine.dtype) == (array.shape, array.dtype):
                mine[...] = array  # Others may have it as well.
                return like
        return mindspore.Parameter(mindspore.Tensor(array), name, requires_grad)

    def bytes_of(self, files: set[int]) -> int:
        """Return how many bytes files have."""
        paths = (self._folder / f"{self._stem}{number}" for number in files)
        return sum(path.stat().st_size for path in paths if path.exists())

    def begin(self) -> None:
        """Begin with other callbacks."""
        self._kept = {}

    # ---- Files that nobody needs any more --------------------------------------------------------

    def sweep(self, lasting: set[int]) -> None:
        """Drop what neither the step just done has, nor the one before; `lasting` stays."""
        recent = {kept.part.number for kept in self._kept.values()}
        for number in self._files - recent - self._recent - lasting:
            with contextlib.suppress(OSError):
                (self._folder / f"{self._stem}{number}").unlink()
            self._files.discard(number)
        self._recent = recent


def not_data() -> int:
    """Raise what says so."""
    raise TypeError


def numbers(value: Any) -> set[int]:
    """Return the numbers of the files that a Form, or a part of it, needs."""
    if isinstance(value, Part):
        return {value.number}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):  # A Form and Items as well.
        return {number for part in value if not is_item(part) for number in numbers(part)}
    return set()


def is_item(value: Any) -> bool:
    """Return whether an item of a list never changes."""
    kind = type(value)
    return kind in _ITEMS or (kind is tuple and _ITEMS.issuperset(map(type, value)))


def _equal(there: Any, mine: Any) -> bool:
    if (there.shape, there.dtype) != (mine.shape, mine.dtype):
        return False
    return not compare(there.ctypes.data, mine.ctypes.data, mine.nbytes)


current: Bulk | None = None  # This process's, once its training has begun.
