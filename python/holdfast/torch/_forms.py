"""Small values of a program, as forms that can be compared, pickled and brought back.

A form is plain data: numbers and text as they are, what holds others as one of the classes here. So
a value that is changed in place can be told from what it was, and be made so again, in place too:
other objects of the program may hold it.
"""

from __future__ import annotations

import ctypes
import numbers
import random
import site
import sys
import sysconfig
from collections import Counter, OrderedDict, defaultdict, deque
from functools import lru_cache
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

NOTHING: Final = object()
PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, bytes))
_DICTS: Final = (dict, OrderedDict, defaultdict, Counter)
_CONTAINERS: Final = frozenset((list, tuple, set, deque, *_DICTS))
_MADE: Final = (list, tuple, set, dict)  # Of the others not all is known.
_DEPTH: Final = 3  # Lists within lists.
_NOT_SEEN: Final = (ModuleType, type, torch.nn.Module, torch.optim.Optimizer)
_LIBRARIES: Final = (
    *filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))),
    *site.getsitepackages(),
    site.getusersitepackages(),
)


class _Dense(NamedTuple):
    """A tensor's or an array's."""

    kind: str
    dtype: Any
    shape: tuple[int, ...]
    content: bytes


class _Parts(NamedTuple):
    """A container's; of a dict its items."""

    kind: type
    parts: tuple[Any, ...]


class _Attributes(NamedTuple):
    """Those of an object of the program's own, as far as they are small."""

    values: tuple[tuple[str, Any], ...]


class _Drawn(NamedTuple):
    """Where a random generator is."""

    state: Any


class Room(NamedTuple):
    """What is small."""

    size: int  # Bytes of one tensor, array or text.
    parts: int  # Of one container.


def form_of(value: Any, room: Room, depth: int = _DEPTH) -> Any:
    """Return the form of something small, else NOTHING. `depth`: of containers and objects."""
    kind = type(value)
    if kind in PLAIN:
        return NOTHING if kind in (str, bytes) and len(value) > room.size else value
    if kind is Tensor:
        return _of_tensor(value, room)
    if kind in _CONTAINERS:
        return _of_container(value, room, depth) if depth else NOTHING
    if kind.__module__ == "numpy":
        return _of_array(value, room)
    if kind in (random.Random, torch.Generator) or kind.__module__.startswith("numpy.random"):
        return _of_generator(value)
    return _of_object(value, room, depth) if depth else NOTHING


def brought_to(form: Any, old: Any = NOTHING) -> Any:
    """Return the value of a form: `old` itself, changed in place, where it is of that kind."""
    if isinstance(form, _Dense):
        return _dense_brought_to(form, old)
    if isinstance(form, _Parts):
        return _container_brought_to(form, old)
    if isinstance(form, _Attributes):
        if (held := attributes_of(old)) is not None:
            for name, part in form.values:
                held[name] = brought_to(part, held.get(name, NOTHING))
        return old
    if isinstance(form, _Drawn):
        _set_drawn(old, form.state)
        return old
    return form


def fits(form: Any, old: Any = NOTHING) -> bool:
    """Whether brought_to() can be done: objects of the program's can not be made here."""
    if isinstance(form, _Parts):
        if type(old) is not form.kind and form.kind not in _MADE:
            return False
        if form.kind in _DICTS:
            there = old if type(old) is form.kind else {}
            return all(fits(part, there.get(key, NOTHING)) for key, part in form.parts)
        return all(map(fits, form.parts, _old_parts(form, old)))
    if isinstance(form, _Attributes):
        held = attributes_of(old)
        return held is not None and all(fits(p, held.get(n, NOTHING)) for n, p in form.values)
    return not isinstance(form, _Drawn) or old is not NOTHING


def can_change(form: Any) -> bool:
    """Whether what has this form can be changed in place."""
    if isinstance(form, _Parts):
        return form.kind is not tuple or any(map(can_change, form.parts))
    return isinstance(form, (_Dense, _Attributes, _Drawn))


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Return those of an object of the program's own, as they are; None: it is no such object."""
    kind: Any = type(value)
    if kind in PLAIN or not _is_the_programs_own(kind):
        return None
    held = None if isinstance(value, _NOT_SEEN) else getattr(value, "__dict__", None)
    return held if type(held) is dict else None


# ---- Kinds of values ----------------------------------------------------------------------------


def _of_tensor(value: Tensor, room: Room) -> Any:
    if value.is_leaf and value.requires_grad:  # A parameter.
        return NOTHING
    if value.layout is not torch.strided or value.device.type != "cpu" or value.nbytes > room.size:
        return NOTHING
    return _Dense("tensor", value.dtype, tuple(value.shape), _bytes_of(value))


def _bytes_of(value: Tensor) -> bytes:
    dense = value.detach().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""


def _of_array(value: Any, room: Room) -> Any:
    if isinstance(value, numbers.Number):
        return value
    numpy = sys.modules["numpy"]
    if type(value) is numpy.ndarray and not value.dtype.hasobject and value.nbytes <= room.size:
        return _Dense("array", value.dtype.str, value.shape, value.tobytes())
    return NOTHING


def _of_generator(value: Any) -> Any:
    if isinstance(value, random.Random):
        return _Drawn(value.getstate())
    if isinstance(value, torch.Generator):
        return _Drawn(_bytes_of(value.get_state())) if value.device.type == "cpu" else NOTHING
    bits = _bits_of(value)
    return NOTHING if bits is None else _Drawn(form_of(bits.state, Room(1 << 13, 64)))


def _bits_of(value: Any) -> Any:
    """Return what draws for one of NumPy's generators."""
    return getattr(value, "bit_generator", None) or getattr(value, "_bit_generator", None)


def _of_container(value: Any, room: Room, depth: int) -> Any:
    if len(value) > room.parts:
        return NOTHING
    kind = type(value)
    if kind in _DICTS:
        values = tuple(form_of(part, room, depth - 1) for part in value.values())
        if NOTHING in values or not all(map(_is_plain_key, value)):
            return NOTHING
        return _Parts(kind, tuple(zip(value, values)))
    if PLAIN.issuperset(map(type, value)):  # Losses, as a rule; they may be many.
        return _Parts(kind, tuple(value))
    forms = tuple(form_of(part, room, depth - 1) for part in value)
    return NOTHING if NOTHING in forms else _Parts(kind, forms)


def _is_plain_key(key: Any) -> bool:
    return type(key) in PLAIN or (type(key) is tuple and PLAIN.issuperset(map(type, key)))


def _of_object(value: Any, room: Room, depth: int) -> Any:
    held = attributes_of(value)
    if not held or len(held) > room.parts:
        return NOTHING
    found = [(name, form_of(part, room, depth - 1)) for name, part in held.items()]
    return _Attributes(tuple((name, form) for name, form in found if form is not NOTHING))


@lru_cache(maxsize=1024)
def _is_the_programs_own(kind: Any) -> bool:
    """Whether a class is neither Python's nor an installed package's."""
    name = kind.__module__
    if name == "__main__":
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and not file.startswith(_LIBRARIES) and name.split(".")[0] != "holdfast"


# ---- And back -----------------------------------------------------------------------------------


def _dense_brought_to(form: _Dense, old: Any) -> Any:
    if form.kind == "array":
        numpy = sys.modules["numpy"]
        array = numpy.frombuffer(form.content, dtype=form.dtype).reshape(form.shape)
        is_same = type(old) is numpy.ndarray and old.flags.writeable
        if is_same and (old.shape, old.dtype.str) == (form.shape, form.dtype):
            old[...] = array
            return old
        return array.copy()
    made = torch.empty(form.shape, dtype=form.dtype)
    if form.content:
        ctypes.memmove(made.data_ptr(), form.content, len(form.content))
    if (
        type(old) is Tensor
        and (tuple(old.shape), old.dtype, old.device) == (form.shape, form.dtype, made.device)
        and old.layout is torch.strided
        and not old.requires_grad
    ):
        return old.copy_(made)
    return made


def _container_brought_to(form: _Parts, old: Any) -> Any:
    is_same = type(old) is form.kind
    if form.kind in _DICTS:
        before = old if is_same else {}
        items = {key: brought_to(part, before.get(key, NOTHING)) for key, part in form.parts}
        if is_same:
            old.clear()
            old.update(items)
        return old if is_same else items
    if form.kind is set:
        if is_same:
            old.clear()
            old.update(form.parts)
        return old if is_same else set(form.parts)
    values = list(map(brought_to, form.parts, _old_parts(form, old)))
    if form.kind is tuple:
        return tuple(values)
    if is_same:
        old.clear()
        old.extend(values)
    return old if is_same else values


def _old_parts(form: _Parts, old: Any) -> list[Any]:
    """Return what lies where a list or a tuple has its parts, as many."""
    is_same = type(old) is form.kind and form.kind is not set
    there: list[Any] = [*old][: len(form.parts)] if is_same else []
    return there + [NOTHING] * (len(form.parts) - len(there))


def _set_drawn(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, torch.Generator):
        generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    else:
        _bits_of(generator).state = brought_to(state)
