"""Keep what a program's callbacks hold: data in their attributes, and parameters of their own."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from holdfast.mindspore import _bulk
from holdfast.mindspore._outputs import FLAT, pack, settled, unpack
from holdfast.mindspore._reach import Reach
from holdfast.mindspore._things import draws, is_thing

_PLAIN: Final = (bool, int, float, str, bytes, type(None))
_DICTS: Final = (dict, OrderedDict, defaultdict, Counter)
# Of an attribute: it is written at every step. From the first on what can be is kept in files.
_MANY_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 256 << 10
_MOST_TOGETHER: Final = 768 << 10
_DEPTH: Final = 8
# MindSpore's callbacks that let the parameters be.
_QUIET: Final = frozenset({"LossMonitor", "ModelCheckpoint", "TimeMonitor"})
_REPAIRS: Final = frozenset({"TFTRegister", "TrainFaultTolerance"})
_SIMPLE: Final = _QUIET | _REPAIRS  # Of these only numbers and texts matter.


def _is(callback: Any, names: frozenset[str]) -> bool:
    kind = type(callback)
    ours = kind.__module__.startswith(("mindspore.train.callback.", "holdfast."))
    return ours and kind.__name__ in names


def leaves_parameters(callback: Any) -> bool:
    """Return whether a callback is known to change no parameter."""
    return isinstance(callback, Reach) or _is(callback, _QUIET)


def repairs(callback: Any) -> bool:
    """Return whether a callback is the one that MindSpore repairs with."""
    return _is(callback, _REPAIRS)


# ---- Attributes ----------------------------------------------------------------------------------


def size_of(value: Any, depth: int = _DEPTH) -> int:
    """Return about how many bytes a value has; TypeError: it is not only data.

    Made at each step: what has many parts is not gone through to its end.
    """
    if isinstance(value, (*_PLAIN, np.generic)):
        return 16 + (len(value) if isinstance(value, (str, bytes)) else 0)
    if type(value) is bytearray:
        return 64 + len(value)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OV":
        return 64 + value.nbytes
    if (type(value) in (list, tuple, set, frozenset, deque) or type(value) in _DICTS) and depth:
        size = 16 * (1 + len(value))
        if size > _MOST_BYTES:
            return size
        parts = [*value, *value.values()] if type(value) in _DICTS else value
        if FLAT.issuperset(map(type, parts)):
            return size
        for part in parts:
            size += size_of(part, depth - 1)
            if size > _MOST_BYTES:
                break
        return size
    if type(value).__name__ == "Tensor" and hasattr(value, "asnumpy"):
        return 64 + int(value.nbytes)
    if draws(value):
        return 4096
    if is_thing(type(value)) and depth:
        return 64 + size_of(vars(value), depth - 1)
    raise TypeError


def _held_by(callback: Any) -> dict[str, Any]:
    return callback.held() if isinstance(callback, Reach) else vars(callback)


def all_attributes(
    callbacks: Sequence[Any], say_once: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return what attributes() says of each; of all together not more than there is room for."""
    room = [_MOST_TOGETHER]
    return [attributes(callback, say_once, room) for callback in callbacks]


def attributes(
    callback: Any,
    say_once: Callable[[str], None],
    room: list[int] | None = None,
    most: int | None = None,
) -> dict[str, Any]:
    """Return those of a callback's attributes that a replacement gets back.

    `room`: how many bytes there are, and are left; `most`: of one of them, which then goes to no
    file.
    """
    found = _held_by(callback)
    if _is(callback, _SIMPLE):
        return {name: value for name, value in found.items() if isinstance(value, _PLAIN)}
    left = room or [_MOST_TOGETHER]
    kept = {}
    for name, value in found.items():
        try:
            size = size_of(value)
        except TypeError:
            size = -1
        upto = min(_MOST_BYTES if most is None else most, left[0])
        if most is None and not 0 <= size <= min(_MANY_BYTES, upto):
            form = _in_files((id(callback), name), value, size)
            if form is not None:
                kept[name] = form
                continue
        if 0 <= size <= upto:
            left[0] -= size
            kept[name] = pack(value)
        elif size >= 0:
            whose = type(callback).__name__
            what = (
                f"variable '{name}', which a callback uses,"
                if isinstance(callback, Reach)
                else f"attribute '{name}' of callback {whose}"
            )
            say_once(
                f"{what} has grown beyond what is kept of such data ({_MOST_BYTES >> 10} KiB, and "
                f"{_MOST_TOGETHER >> 10} KiB of all together) and is not kept any more: a process "
                "that replaces another has what the program gives it at its start; lists of "
                "numbers and arrays may have some 64 MiB, and what is larger belongs into files"
            )
    return kept


def _in_files(key: Any, value: Any, size: int) -> Any:
    """Return what stands for a value that is kept in files; None: it can not be."""
    bulk = _bulk.current
    if bulk is None or (size < 0 and not _may_be_bulk(value)):
        return None
    try:
        return bulk.take(key, value)
    except (TypeError, OSError, RuntimeError):  # No data, no room, no such type in NumPy.
        return None


def _may_be_bulk(value: Any) -> bool:
    return type(value) in (dict, OrderedDict, list, tuple) or type(value).__name__ == "Parameter"


def give_back(callback: Any, kept: dict[str, Any]) -> None:
    """Set what attributes() has found; a list and the like stay the objects that they are."""
    for name, packed in kept.items():
        now: Any = _held_by(callback).get(name)
        try:
            value = _as_it_was(packed, now)
        except LookupError:
            continue
        if value is now:
            continue
        if type(now) is type(value) and isinstance(now, (list, deque, bytearray)):
            now.clear()
            now.extend(value)
        elif type(now) is type(value) and (type(now) in _DICTS or type(now) is set):
            now.clear()
            now.update(value)
        elif isinstance(now, np.ndarray) and _fits(now, value):
            now[...] = value
        elif isinstance(callback, Reach):
            callback.put(name, value)
        else:
            setattr(callback, name, value)


def _as_it_was(packed: Any, now: Any) -> Any:
    if isinstance(packed, _bulk.Form):
        assert _bulk.current is not None
        return _bulk.current.read(packed, now)
    return settled(unpack(packed), now)


def _fits(now: Any, value: Any) -> bool:
    same = isinstance(value, np.ndarray) and (now.shape, now.dtype) == (value.shape, value.dtype)
    return same and bool(now.flags.writeable)


# ---- Parameters ----------------------------------------------------------------------------------


def _held(value: Any) -> Iterator[Any]:
    from mindspore import Parameter
    from mindspore.nn import Cell

    if isinstance(value, Parameter):
        yield value
    elif isinstance(value, Cell):
        yield from value.get_parameters()
    elif isinstance(value, (list, tuple)) and len(value) <= _MOST_BYTES:
        yield from (part for part in value if isinstance(part, Parameter))
    elif type(value) is dict:
        yield from _held(list(value.values()))


def parameters(callbacks: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Return the parameters in attributes of callbacks, such as averages, that are not known."""
    seen, found = {id(p) for p in known}, []
    for callback in callbacks:
        if type(callback).__module__.startswith(("mindspore.", "holdfast.")):
            continue  # Theirs come back of themselves.
        for value in vars(callback).values():
            for parameter in _held(value):
                if id(parameter) not in seen and not parameter.has_init:
                    seen.add(id(parameter))
                    found.append(parameter)
    return found
