"""Make what a network returns, or a callback holds, such that it can be pickled, and that again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from itertools import accumulate
from typing import Any, Final

import numpy as np

FLAT: Final = frozenset({bool, int, float, type(None)})
_ATOMS: Final = FLAT | {str, bytes}
_SETS: Final = (set, frozenset)


def _alike(value: Any, made: Callable[[Any], Any]) -> Any:
    """Return `value` with made() of its parts; None: it has none."""
    if type(value) in (list, tuple, deque, *_SETS) and _ATOMS.issuperset(map(type, value)):
        return copy(value)
    if type(value) in _SETS:
        return type(value)(map(made, value))
    if isinstance(value, deque):
        return deque(map(made, value), value.maxlen)
    if isinstance(value, (tuple, list)):
        parts = map(made, value)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return {k: made(v) for k, v in value.items()}
    return None


def pack(value: Any) -> Any:
    """Make outputs of a network such that they can be pickled; each kind of dict becomes a dict.

    It shares nothing with them that can change: they may be brought back to it.
    """
    parts = _alike(value, pack)
    if parts is not None:
        return parts
    if hasattr(value, "asnumpy"):
        return Packed(value.asnumpy().copy(), str(value.dtype))
    return copy(value) if isinstance(value, (np.ndarray, bytearray)) else value


class Packed:
    """A tensor without MindSpore."""

    def __init__(self, array: Any, dtype: str) -> None:
        self.array, self.dtype = array, dtype


class Left:
    """In place of a tensor or array that is too large."""

    def __init__(self, large: Any) -> None:
        self.shape, self.dtype = _array(large).shape, large.dtype


def _array(packed: Any) -> Any:
    return packed.array if isinstance(packed, Packed) else packed


def unpack(value: Any) -> Any:
    """Make what pack() made outputs again, which may change without it."""
    parts = _alike(value, unpack)
    if parts is not None:
        return parts
    if isinstance(value, Packed):
        import mindspore

        return mindspore.Tensor(value.array, getattr(mindspore, value.dtype.lower()))
    if isinstance(value, Left) and isinstance(value.dtype, np.dtype):
        return np.zeros(value.shape, value.dtype)
    if isinstance(value, Left):
        import mindspore

        return mindspore.ops.zeros(value.shape, getattr(mindspore, value.dtype.lower()))
    return copy(value) if isinstance(value, (np.ndarray, bytearray)) else value


def within(packed: Any, limit: int) -> tuple[Any, int]:
    """Return packed outputs and their bytes; the largest go until all others are within a limit."""
    parts = sorted(_large(packed), key=lambda part: int(_array(part).nbytes))
    upto = list(accumulate(int(_array(part).nbytes) for part in parts))
    size = upto[-1] if upto else 0
    if size <= limit:
        return packed, size
    gone = {id(part) for part, end in zip(parts, upto) if end > limit}
    return _without(gone, packed), size


def _large(packed: Any) -> Iterator[Any]:
    """Give the parts that may be large: of equal ones the first is first, such as the loss."""
    if isinstance(packed, dict):
        packed = list(packed.values())
    if isinstance(packed, (tuple, list, deque)):
        for part in packed:
            yield from _large(part)
    elif isinstance(packed, (Packed, np.ndarray)):
        yield packed


def _without(gone: set[int], packed: Any) -> Any:
    parts = _alike(packed, partial(_without, gone))
    if parts is not None:
        return parts
    return Left(packed) if id(packed) in gone else packed
