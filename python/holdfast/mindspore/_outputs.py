"""Make what a network returns, or a callback holds, such that it can be pickled, and that again."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from copy import copy, deepcopy
from typing import Any, Final

import numpy as np

FLAT: Final = frozenset({bool, int, float, type(None)})
_ATOMS: Final = FLAT | {str, bytes}
_SETS: Final = (set, frozenset)
_DRAW: Final = (random.Random, np.random.RandomState, np.random.Generator)


def draws(value: Any) -> bool:
    """Return whether it is a random generator of Python's or NumPy's."""
    return type(value) in _DRAW


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
        return _of_kind(value, {k: made(v) for k, v in value.items()})
    return None


def _of_kind(value: dict[Any, Any], parts: dict[Any, Any]) -> dict[Any, Any]:
    """Return parts as the kind of dict that `value` is; one of the program's own becomes a dict."""
    make = getattr(value, "default_factory", None)
    if type(value) is defaultdict and isinstance(make, type) and make.__module__ == "builtins":
        return defaultdict(make, parts)
    return type(value)(parts) if type(value) in (OrderedDict, Counter) else parts


def pack(value: Any) -> Any:
    """Make outputs of a network such that they can be pickled.

    It shares nothing with them that can change: they may be brought back to it.
    """
    parts = _alike(value, pack)
    if parts is not None:
        return parts
    if hasattr(value, "asnumpy"):
        about = (value.name, value.requires_grad) if type(value).__name__ == "Parameter" else None
        return Packed(value.asnumpy().copy(), str(value.dtype), about)
    return _copied(value)


def _copied(value: Any) -> Any:
    if draws(value):
        return deepcopy(value)
    return copy(value) if isinstance(value, (np.ndarray, bytearray)) else value


class Packed:
    """A tensor without MindSpore; `about`: a parameter's name, and whether it is trained."""

    def __init__(self, array: Any, dtype: str, about: tuple[str, bool] | None = None) -> None:
        self.array, self.dtype, self.about = array, dtype, about

    def tensor(self) -> Any:
        """Make it again."""
        import mindspore

        made = mindspore.Tensor(self.array, getattr(mindspore, self.dtype.lower()))
        return mindspore.Parameter(made, *self.about) if self.about else made


class Left:
    """In place of a tensor or array that is too large."""

    def __init__(self, large: Any) -> None:
        self.shape, self.dtype = _array(large).shape, large.dtype

    def zeros(self) -> Any:
        """Make one of its shape."""
        if isinstance(self.dtype, np.dtype):
            return np.zeros(self.shape, self.dtype)
        import mindspore

        return mindspore.ops.zeros(self.shape, getattr(mindspore, self.dtype.lower()))


def _array(packed: Any) -> Any:
    return packed.array if isinstance(packed, Packed) else packed


def unpack(value: Any) -> Any:
    """Make what pack() made outputs again, which may change without it."""
    parts = _alike(value, unpack)
    if parts is not None:
        return parts
    if isinstance(value, Packed):
        return value.tensor()
    if isinstance(value, Left):
        return value.zeros()
    return _copied(value)


def within(packed: Any, room: int) -> tuple[Any, bool]:
    """Return packed outputs without those that there is no room for, and whether there are any.

    The room is given in their order: the loss is the first.
    """
    parts: list[Any] = [room]

    def made(part: Any) -> Any:
        several = _alike(part, made)
        if several is not None:
            return several
        size = int(_array(part).nbytes) if isinstance(part, (Packed, np.ndarray)) else 0
        if size > parts[0]:
            parts.append(part)
            return Left(part)
        parts[0] -= size
        return part

    kept = made(packed)
    return kept, len(parts) > 1
