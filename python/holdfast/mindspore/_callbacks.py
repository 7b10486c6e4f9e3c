"""Keep what a program's callbacks hold: plain attributes, or their state_dict; parameters too.

A callback that has `state_dict` and `load_state_dict` says by them what is kept of it. Of another
one its own attributes are, those that are data: numbers, texts, lists, dicts, arrays, tensors.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from holdfast.mindspore import _bulk
from holdfast.mindspore._outputs import FLAT, draws, pack, unpack

_PLAIN: Final = (bool, int, float, str, bytes, type(None))
_DICTS: Final = (dict, OrderedDict, defaultdict, Counter)
# Of an attribute: it is written at every step. From the first on what can be is kept in files.
_MANY_BYTES: Final = 64 << 10
_MOST_BYTES: Final = 256 << 10
_MOST_TOGETHER: Final = 768 << 10
_MOST_IN_FILES: Final = 64 << 20  # Of an attribute, about.
_DEPTH: Final = 8
_STATE_DICT: Final = "state_dict"  # In a pair with a name: it is of what state_dict() gives.
# MindSpore's callbacks that let the parameters be.
_QUIET: Final = frozenset({"LossMonitor", "ModelCheckpoint", "TimeMonitor"})
_REPAIRS: Final = frozenset({"TFTRegister", "TrainFaultTolerance"})
_SIMPLE: Final = _QUIET | _REPAIRS  # Of these only numbers and texts matter.

Kept = dict[Any, Any]  # What is kept of a thing, by the names of its attributes.


def _of_mindspore(callback: Any) -> bool:
    return type(callback).__module__.startswith(("mindspore.", "holdfast."))


def _is(callback: Any, names: frozenset[str]) -> bool:
    return _of_mindspore(callback) and type(callback).__name__ in names


def leaves_parameters(callback: Any) -> bool:
    """Return whether a callback is known to change no parameter."""
    return _is(callback, _QUIET)


def repairs(callback: Any) -> bool:
    """Return whether a callback is the one that MindSpore repairs with."""
    return _is(callback, _REPAIRS)


# ---- Attributes ----------------------------------------------------------------------------------


def size_of(value: Any, most: int = _MOST_BYTES, depth: int = _DEPTH) -> int:
    """Return about how many bytes a value has; TypeError: it is not only data.

    Made at each step: what has many parts is not gone through to its end once it has `most` bytes.
    """
    if isinstance(value, (*_PLAIN, np.generic)):
        return 16 + (len(value) if isinstance(value, (str, bytes)) else 0)
    if type(value) is bytearray:
        return 64 + len(value)
    if isinstance(value, np.ndarray) and value.dtype.kind not in "OV":
        return 64 + value.nbytes
    if (type(value) in (list, tuple, set, frozenset, deque) or type(value) in _DICTS) and depth:
        size = 16 * (1 + len(value))
        if size > most:
            return size
        parts = [*value, *value.values()] if type(value) in _DICTS else value
        if FLAT.issuperset(map(type, parts)):
            return size
        for part in parts:
            size += size_of(part, most, depth - 1)
            if size > most:
                break
        return size
    if hasattr(value, "asnumpy") and (type(value).__name__ == "Tensor" or _is_own(value)):
        return 64 + int(value.nbytes)
    if draws(value):
        return 4096
    raise TypeError(type(value))


def _is_own(parameter: Any) -> bool:
    """Return whether a parameter is kept in no other way."""
    bulk = _bulk.current
    kept = bulk is None or id(parameter) in bulk.others or parameter.has_init
    return type(parameter).__name__ == "Parameter" and not kept


def has_state_dict(thing: Any) -> bool:
    """Return whether a thing says itself what is kept of it."""
    return not _of_mindspore(thing) and all(
        callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict")
    )


def of_state_dict(name: Any) -> tuple[str, Any]:
    """Return what stands for one of the names in what state_dict() gives."""
    return _STATE_DICT, name


def all_attributes(callbacks: Sequence[Any], say_once: Callable[[str], None]) -> list[Kept]:
    """Return what attributes() says of each; of all together not more than there is room for."""
    room = [_MOST_TOGETHER]
    return [attributes(callback, say_once, room) for callback in callbacks]


def attributes(
    callback: Any,
    say_once: Callable[[str], None],
    room: list[int] | None = None,
    most: int | None = None,
) -> Kept:
    """Return those of a callback's attributes that a replacement gets back.

    `room`: how many bytes there are, and are left; `most`: of one of them, which then goes to no
    file.
    """
    found: Kept = dict(vars(callback))
    if has_state_dict(callback):
        found = {of_state_dict(n): value for n, value in callback.state_dict().items()}
    if _is(callback, _SIMPLE):
        return {name: value for name, value in found.items() if isinstance(value, _PLAIN)}
    left = room or [_MOST_TOGETHER]
    kept: Kept = {}
    for name, value in found.items():
        try:
            size = size_of(value, _MOST_IN_FILES)
        except TypeError as error:
            if _is_program_s(error.args[0]) and not _of_mindspore(callback):
                say_once(_no_data(callback, name, error.args[0]))
            continue
        bulk = _bulk.current if most is None and size > _MANY_BYTES else None
        form = bulk.take((id(callback), name), value) if bulk else None
        if form is not None:
            kept[name] = form
        elif size <= min(_MOST_BYTES if most is None else most, left[0]):
            left[0] -= size
            kept[name] = pack(value)
        else:
            say_once(
                f"attribute '{name}' of callback {type(callback).__name__} has grown beyond what "
                f"is kept of such data ({_MOST_IN_FILES >> 20} MiB together) and is not kept any "
                "more: a process that replaces another has what the program gives it at its start; "
                "what is larger belongs into files"
            )
    return kept


def _is_program_s(kind: type) -> bool:
    """Return whether a class is the program's own alone, such as an average meter."""
    rooms = {base.__module__.partition(".")[0] for base in kind.__mro__ if base is not object}
    return rooms.isdisjoint(sys.stdlib_module_names | {"holdfast", "mindspore", "numpy"})


def _no_data(callback: Any, name: Any, kind: type) -> str:
    whose = type(callback).__name__
    return (
        f"attribute '{name}' of callback {whose} holds an object of class {kind.__name__}, which "
        "is not kept: a process that replaces another has what the program gives it at its start; "
        f"give {whose} state_dict() and load_state_dict()"
    )


def give_back(callback: Any, kept: Kept) -> None:
    """Set what attributes() has found; a list and the like stay the objects that they are."""
    whole = {n[1]: _as_it_was(packed) for n, packed in kept.items() if type(n) is tuple}
    if whole:
        callback.load_state_dict(whole)
        return
    for name, packed in kept.items():
        now = vars(callback).get(name)
        value = _as_it_was(packed)
        if type(now) is type(value) and isinstance(now, (list, deque, bytearray)):
            now.clear()
            now.extend(value)
        elif (type(now) in _DICTS and isinstance(value, dict)) or type(now) is type(value) is set:
            now.clear()
            now.update(value)
        elif isinstance(now, np.ndarray) and _fits(now, value):
            now[...] = value
        else:
            setattr(callback, name, value)


def _as_it_was(packed: Any) -> Any:
    if isinstance(packed, _bulk.Form):
        assert _bulk.current is not None
        return _bulk.current.read(packed)
    return unpack(packed)


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
    own = [callback for callback in callbacks if not _of_mindspore(callback)]
    return held_by([value for callback in own for value in vars(callback).values()], known)


def held_by(values: Sequence[Any], known: Sequence[Any]) -> list[Any]:
    """Return the parameters in cells, lists and the like, each once, that are not known."""
    seen, found = {id(p) for p in known}, []
    for value in values:
        for parameter in _held(value):
            if id(parameter) not in seen and not parameter.has_init:
                seen.add(id(parameter))
                found.append(parameter)
    return found
