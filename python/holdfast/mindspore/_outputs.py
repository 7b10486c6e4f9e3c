"""Make what a network returns, or a callback holds, such that it can be pickled, and that again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Any, Final

import numpy as np

FLAT: Final = frozenset({bool, int, float, type(None)})
_ATOMS: Final = FLAT | {str, bytes}
_SETS: Final = (set, frozenset)
_MOST_BYTES: Final = 64 << 10  # Of one output, where all of them have more than their limit.


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
    """In place of a large one."""

    def __init__(self, large: Packed) -> None:
        self.shape, self.dtype = large.array.shape, large.dtype


def unpack(value: Any) -> Any:
    """Make what pack() made outputs again, which may change without it."""
    parts = _alike(value, unpack)
    if parts is not None:
        return parts
    if isinstance(value, Packed):
        import mindspore

        return mindspore.Tensor(value.array, getattr(mindspore, value.dtype.lower()))
    if isinstance(value, Left):
        import mindspore

        return mindspore.ops.zeros(value.shape, getattr(mindspore, value.dtype.lower()))
    return copy(value) if isinstance(value, (np.ndarray, bytearray)) else value


def within(packed: Any, limit: int) -> tuple[Any, int]:
    """Return packed outputs without large tensors, where all have more bytes; and their bytes."""
    size = _bytes(packed)
    return (packed, size) if size <= limit else (_without_large(packed), size)


def _bytes(packed: Any) -> int:
    if isinstance(packed, dict):
        return sum(map(_bytes, packed.values()))
    if isinstance(packed, (tuple, list)):
        return sum(map(_bytes, packed))
    return int(packed.array.nbytes) if isinstance(packed, Packed) else 0


def _without_large(packed: Any) -> Any:
    parts = _alike(packed, _without_large)
    if parts is not None:
        return parts
    large = isinstance(packed, Packed) and packed.array.nbytes > _MOST_BYTES
    return Left(packed) if large else packed
