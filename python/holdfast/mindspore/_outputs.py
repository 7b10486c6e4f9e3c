"""Make what a network returns, or a callback holds, such that it can be pickled, and that again."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from itertools import accumulate, chain, repeat
from typing import Any, Final

import numpy as np

from holdfast.mindspore._things import Drawer, Thing, drawer, draws, is_thing, named

FLAT: Final = frozenset({bool, int, float, type(None)})
_ATOMS: Final = FLAT | {str, bytes}
_SETS: Final = (set, frozenset)
# Every process has these, one without MindSpore too.
_KNOWN_MODULES: Final = ("builtins", "collections", "numpy")


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
    kind = type(value)
    if isinstance(value, defaultdict):
        make = value.default_factory
        known = make is None or getattr(make, "__module__", "") in _KNOWN_MODULES
        return defaultdict(make, parts) if known else Lacking(parts)
    return kind(parts) if kind in (OrderedDict, Counter, Lacking) else parts


class Lacking(dict[Any, Any]):
    """In place of a defaultdict whose factory (a lambda, say) can not be pickled."""


def settled(value: Any, like: Any) -> Any:
    """Return data as the program has it; `like`: what is there now.

    That knows the factories that were lacking, and objects stay those that they are. LookupError:
    there is no such class any more.
    """
    if isinstance(value, Drawer):
        return value.into(like)
    if isinstance(value, Thing):
        target = value.into(like)
        vars(target).update(settled(value.held, vars(target)))
        for gone in vars(target).keys() - value.held.keys():
            del vars(target)[gone]
        return target
    if type(value) in (list, tuple) and not _ATOMS.issuperset(map(type, value)):
        several = like if type(like) is type(value) else ()
        return type(value)(map(settled, value, chain(several, repeat(None))))
    if not isinstance(value, dict):
        return value
    make = getattr(like, "default_factory", None) or getattr(value, "default_factory", None)
    there = like if isinstance(like, dict) else {}
    for key, part in value.items():
        if isinstance(part, (dict, list, tuple, Thing, Drawer)):
            lacks = isinstance(part, Lacking) and key not in there
            value[key] = settled(part, make() if make and lacks else there.get(key))
    return defaultdict(make, value) if isinstance(value, Lacking) else value


def pack(value: Any) -> Any:
    """Make outputs of a network such that they can be pickled.

    It shares nothing with them that can change: they may be brought back to it.
    """
    parts = _alike(value, pack)
    if parts is not None:
        return parts
    if hasattr(value, "asnumpy"):
        return Packed(value.asnumpy().copy(), str(value.dtype))
    if draws(value):
        return drawer(value)
    if is_thing(type(value)):
        return Thing(named(type(value)), pack(vars(value)), value)
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
    if isinstance(value, Drawer):
        return value
    if isinstance(value, Thing):
        return Thing(value.kind, unpack(value.held), value.of)
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
