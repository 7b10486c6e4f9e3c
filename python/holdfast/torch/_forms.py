"""Small values of a program, as forms that can be compared, pickled and brought back.

A form is plain data: numbers and text as they are, what holds others as one of the classes here. It
tells whether a value has changed, in place too, and in another process brings the value there to
what it was, in place too: other objects of the program may hold it.
"""

from __future__ import annotations

import argparse
import ctypes
import enum
import operator
import random
import site
import sys
import sysconfig
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

NOTHING: Final = object()
PLAIN: Final = frozenset((type(None), bool, int, float, complex, str, bytes))
_DICTS: Final = (dict, OrderedDict, defaultdict, Counter)
_CONTAINERS: Final = frozenset((list, tuple, set, deque, *_DICTS))
_OBJECTS: Final = (SimpleNamespace, argparse.Namespace)
_DEPTH: Final = 3  # Lists within lists.
_HASHED: Final = 1 << 16  # Bytes of an array that is not small, and seen to change all the same.
_MANY: Final = 64
# Forms of lists and dicts of many numbers, by id, and what they held: a vocabulary stays the same.
_KNOWN: Final[dict[int, tuple[list[Any], _Parts]]] = {}
_TENSORS: Final[WeakKeyDictionary[torch.nn.Module, list[Tensor]]] = WeakKeyDictionary()
_NOT_SEEN: Final = (ModuleType, type, torch.nn.Module, torch.optim.Optimizer)
_NOT_OBJECTS: Final = (*_NOT_SEEN, enum.Enum, list, tuple, set, deque, dict)
LIBRARIES: Final = (
    *filter(None, map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))),
    *site.getsitepackages(),
    site.getusersitepackages(),
)
OURS: Final = str(Path(__file__).parent)


class _Dense(NamedTuple):
    """A tensor's, an array's, or that of one of NumPy's numbers."""

    kind: str
    dtype: Any
    shape: tuple[int, ...]
    content: bytes


_Class = tuple[str, str]  # Its module, and what it is called there.


class _Parts(NamedTuple):
    """A container's; of a dict its items."""

    kind: type
    parts: tuple[Any, ...]
    how: int | _Class | None = None  # A deque's length at most, a defaultdict's factory.
    attributes: tuple[tuple[str, Any], ...] = ()  # Of the program's own kind.


class _Attributes(NamedTuple):
    """Those of an object of the program's own, as far as they are small."""

    who: int  # Which object, in its own process.
    values: tuple[tuple[str, Any], ...]
    kind: _Class
    is_whole: bool  # Such an object can be made by these alone.


class _Member(NamedTuple):
    """An enum's."""

    kind: _Class
    name: str


class _Drawn(NamedTuple):
    """Where a random generator is."""

    kind: str
    state: Any


class Opaque(NamedTuple):
    """Of what is too large, or holds what has no form: which one it is, and how long."""

    who: int
    size: int  # Or what else tells that it has changed.
    is_tensor: bool = False


class Room(NamedTuple):
    """What is small."""

    size: int  # Bytes of a tensor, an array or a text.
    parts: int  # Of a value in all, but for:
    flat: int  # Numbers in a container that has nothing else.


class _TooLargeError(Exception):
    """A value has more parts than there is room for."""


class _Look:
    """Finds the form of one value."""

    def __init__(self, room: Room) -> None:
        self.size, self.parts, self.flat = room

    def form(self, value: Any, depth: int) -> Any:
        kind: Any = type(value)
        if kind in PLAIN:
            is_large = kind in (str, bytes) and len(value) > self.size
            return Opaque(id(value), len(value)) if is_large else value
        self.parts -= 1
        if self.parts < 0:
            raise _TooLargeError
        if kind is Tensor:
            return _of_tensor(value, self.size)
        if kind in _CONTAINERS or _is_own_container(kind):
            return self._of_container(value, depth)
        if kind.__module__ == "numpy":
            return _of_array(value, self.size)
        if (drawing := _kind_of_generator(value)) is not None:
            return _of_generator(drawing, value)
        if isinstance(value, enum.Enum):
            named = _name_of(kind)
            return NOTHING if named is None else _Member(named, value.name)
        held = attributes_of(value)
        if held is None or not depth:
            return NOTHING
        found = [(name, self.form(part, depth - 1)) for name, part in list(held.items())]
        kept = tuple((name, form) for name, form in found if not is_opaque(form))
        is_whole = len(kept) == len(found) and kind.__new__ is object.__new__
        is_whole = is_whole and _name_of(kind) is not None
        return _Attributes(id(value), kept, _full_name(kind), is_whole)

    def _of_container(self, value: Any, depth: int) -> Any:
        kind: Any = type(value)
        size = len(value)
        if size > max(self.parts, self.flat) or not depth:
            return Opaque(id(value), size)
        is_dict = isinstance(value, dict)
        keys, parts = [*value] if is_dict else [], [*(value.values() if is_dict else value)]
        known = _KNOWN.get(id(value))
        is_known = known is not None and known[1].kind is kind and self.flat >= size
        if known is not None and is_known and _are_same([*keys, *parts], known[0]):
            self.flat -= size
            return known[1]
        if not (PLAIN.issuperset(map(type, keys)) or all(map(_is_plain_key, keys))):
            return Opaque(id(value), size)
        if PLAIN.issuperset(map(type, parts)):  # Losses, as a rule; they may be many.
            forms = parts
            self.flat -= size
            if self.flat < 0:
                return Opaque(id(value), size)
        elif size > self.parts:
            return Opaque(id(value), size)
        else:
            forms = [self.form(part, depth - 1) for part in parts]
            if any(map(is_opaque, forms)):
                inner = sum(form.size for form in forms if type(form) is Opaque)
                return Opaque(id(value), size + inner)
        how: Any = value.maxlen if isinstance(value, deque) else None
        if isinstance(value, defaultdict):
            how = _name_of(value.default_factory)
        held = {} if kind in _CONTAINERS else getattr(value, "__dict__", {})
        own = [] if held is value else list(held.items())
        attributes = tuple((name, self.form(part, depth - 1)) for name, part in own)
        is_named = kind in _CONTAINERS or _name_of(kind) is not None
        if not is_named or any(is_opaque(form) for _, form in attributes):
            return Opaque(id(value), size)
        form = _Parts(kind, tuple(zip(keys, forms)) if is_dict else tuple(forms), how, attributes)
        if forms is parts and size >= _MANY and kind in (list, dict):
            if len(_KNOWN) >= _MANY:
                del _KNOWN[next(iter(_KNOWN))]
            _KNOWN[id(value)] = [*keys, *parts], form
        return form


def _are_same(these: list[Any], those: list[Any]) -> bool:
    return len(these) == len(those) and all(map(operator.is_, these, those))


def form_of(value: Any, room: Room, depth: int = _DEPTH) -> Any:
    """Return the form of something small, else an Opaque one, or NOTHING: it is not looked at.

    `depth`: of containers and objects. Whatever a value does then is no error of its program's.
    """
    try:
        return _Look(room).form(value, depth)
    except _TooLargeError:
        return Opaque(id(value), -1)
    except Exception:  # Threads of the program change it, or it is an odd one.
        return NOTHING


def brought_to(form: Any, old: Any = NOTHING) -> Any:
    """Return the value of a form: `old` itself, changed in place, where it is of that kind."""
    if isinstance(form, _Dense):
        return _dense_brought_to(form, old)
    if isinstance(form, _Parts):
        return _container_brought_to(form, old)
    if isinstance(form, _Attributes):
        if (held := _attributes_for(form, old)) is None:
            old = object.__new__(_class_named(form.kind))
            held = vars(old)
        for name, part in form.values:
            held[name] = _part_brought_to(part, held.get(name, NOTHING))
        return old
    if isinstance(form, _Member):
        return getattr(_class_named(form.kind), form.name)
    return _drawn_brought_to(form, old) if isinstance(form, _Drawn) else form


def fits(form: Any, old: Any = NOTHING) -> bool:
    """Whether brought_to() can be done: not each object of the program's can be made here."""
    if is_opaque(form):
        return False
    if isinstance(form, _Parts):
        if type(old) is not form.kind and not _can_be_made(form):
            return False
        own = vars(old) if form.attributes and type(old) is form.kind else {}
        if not all(fits(part, own.get(name, NOTHING)) for name, part in form.attributes):
            return False
        if issubclass(form.kind, dict):
            there: Any = old if type(old) is form.kind else {}
            return all(fits(part, there.get(key, NOTHING)) for key, part in form.parts)
        return all(map(fits, form.parts, _old_parts(form, old)))
    if isinstance(form, _Attributes):
        held = _attributes_for(form, old)
        if held is None and not (form.is_whole and _class_named(form.kind)):
            return False
        return all(fits(part, (held or {}).get(name, NOTHING)) for name, part in form.values)
    return not isinstance(form, _Member) or hasattr(_class_named(form.kind), form.name)


def is_opaque(form: Any) -> bool:
    """Whether it does not say what its value is."""
    return form is NOTHING or type(form) is Opaque


def can_be_told(form: Any, before: Any) -> bool:
    """Whether brought_to() in a successor, that has what was `before`, gives what has this form.

    Objects of the program's have to be in their places there, or to be new ones that can be made.
    """

    @lru_cache(maxsize=1)
    def known() -> set[int]:
        return set(_objects_in(before))

    def told(now: Any, was: Any) -> bool:
        if isinstance(now, _Attributes):
            is_same = isinstance(was, _Attributes) and was.who == now.who
            if not is_same and (not now.is_whole or now.who in known()):
                return False
            were = dict(was.values) if is_same else {}
            return all(told(part, were.get(name, NOTHING)) for name, part in now.values)
        if not isinstance(now, _Parts):
            return True
        is_same = isinstance(was, _Parts) and was.kind is now.kind
        if not is_same and not _can_be_made(now):
            return False
        if _is_all_plain(now):
            return True
        were = _by_place(was) if is_same else {}
        return all(told(part, were.get(at, NOTHING)) for at, part in _by_place(now).items())

    return told(form, before)


def _is_all_plain(form: _Parts) -> bool:
    if issubclass(form.kind, dict):
        return PLAIN.issuperset(type(part) for _, part in form.parts)
    return PLAIN.issuperset(map(type, form.parts))


def _by_place(form: _Parts) -> dict[Any, Any]:
    return dict(form.parts if issubclass(form.kind, dict) else enumerate(form.parts))


def _objects_in(form: Any) -> list[int]:
    if isinstance(form, _Attributes):
        return [form.who, *(who for _, part in form.values for who in _objects_in(part))]
    if isinstance(form, _Parts) and not _is_all_plain(form):
        return [who for part in _by_place(form).values() for who in _objects_in(part)]
    return []


def _attributes_for(form: _Attributes, old: Any) -> dict[str, Any] | None:
    """Return those of an object that may become what has a form; None: it is of another class."""
    return attributes_of(old) if _full_name(type(old)) == form.kind else None


def attributes_of(value: Any) -> dict[str, Any] | None:
    """Return those of an object of the program's own, as they are; None: it is no such object."""
    kind: Any = type(value)
    if kind in PLAIN or not (kind in _OBJECTS or _is_the_programs_own(kind)):
        return None
    held = None if issubclass(kind, _NOT_OBJECTS) else getattr(value, "__dict__", None)
    return held if type(held) is dict else None


# ---- Kinds of values ----------------------------------------------------------------------------


def _of_tensor(value: Tensor, size: int) -> Any:
    if value.is_leaf and value.requires_grad:  # A parameter.
        return NOTHING
    is_usual = value.layout is torch.strided and not (value.is_nested or value.is_quantized)
    if not is_usual or value.device.type != "cpu":
        return NOTHING
    if value.nbytes > size:
        return Opaque(id(value), _writes(value), True)
    return _Dense("tensor", value.dtype, tuple(value.shape), bytes_of(value))


def bytes_of(value: Tensor) -> bytes:
    """Return what a tensor holds."""
    dense = value.detach().resolve_conj().resolve_neg().contiguous()
    return ctypes.string_at(dense.data_ptr(), dense.nbytes) if dense.nbytes else b""


def _writes(value: Tensor) -> int:
    return 0 if value.is_inference() else value._version


def writes_to(module: torch.nn.Module, not_ours: set[int]) -> int:
    """Return a number that grows with each write to a module's tensors, but for some."""
    try:
        tensors = _TENSORS.get(module)
        if tensors is None:
            tensors = _TENSORS[module] = [*module.parameters(), *module.buffers()]
        return sum(_writes(tensor) for tensor in tensors if id(tensor) not in not_ours)
    except Exception:  # It has no hash, or is an odd one.
        return 0


def _of_array(value: Any, size: int) -> Any:
    numpy = sys.modules["numpy"]
    is_number = isinstance(value, numpy.generic)  # Which is not to be compared with other forms.
    if not (is_number or type(value) is numpy.ndarray) or value.dtype.hasobject:
        return NOTHING
    if value.nbytes > size:
        is_large = value.nbytes > _HASHED
        return Opaque(id(value), value.nbytes if is_large else zlib.crc32(value.tobytes()))
    kind = "number" if is_number else "array"
    return _Dense(kind, value.dtype, value.shape, value.tobytes())


def _kind_of_generator(value: Any) -> str | None:
    """Return what a random generator is; None: it is none, or draws not from this process's CPU."""
    kind: Any = type(value)
    if kind is random.Random:
        return "random"
    if kind is torch.Generator:
        return "torch" if value.device.type == "cpu" else None
    if not kind.__module__.startswith("numpy.random"):
        return None
    name = type(value.bit_generator if kind.__name__ == "Generator" else value).__name__
    return name if hasattr(value, "random") and hasattr(sys.modules["numpy"].random, name) else None


def _of_generator(kind: str, value: Any) -> Any:
    if kind == "random":
        return _Drawn(kind, value.getstate())
    if kind == "torch":
        return _Drawn(kind, bytes_of(value.get_state()))
    # A RandomState keeps the second of two normal numbers besides.
    state = value.get_state(legacy=False) if kind == "RandomState" else value.bit_generator.state
    return _Drawn(kind, form_of(state, Room(1 << 13, 64, 64)))


def _is_plain_key(key: Any) -> bool:
    return type(key) in PLAIN or (type(key) is tuple and PLAIN.issuperset(map(type, key)))


@lru_cache(maxsize=1024)
def _name_of(kind: Any) -> _Class | None:
    """Return the name by which _class_named() finds a class in another process; None: by none."""
    if not isinstance(kind, type):
        return None
    name = _full_name(kind)
    return name if _class_named(name) is kind else None


def _full_name(kind: Any) -> _Class:
    return kind.__module__, kind.__qualname__


def _class_named(name: Any) -> Any:
    """Return a class by its name; None: there is none."""
    if name is None:
        return None
    module, path = name
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found


def _is_own_container(kind: type) -> bool:
    return issubclass(kind, (list, set, deque, dict)) and _is_the_programs_own(kind)


@lru_cache(maxsize=1024)
def _is_the_programs_own(kind: Any) -> bool:
    """Whether a class is neither Python's nor an installed package's, or a scheduler's.

    A scheduler that warms up is made within the first pass, where nobody can give it to State.
    """
    if issubclass(kind, LRScheduler):
        return True
    name = kind.__module__
    if name == "__main__":
        return True
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and not file.startswith(LIBRARIES) and name.split(".")[0] != "holdfast"


# ---- And back -----------------------------------------------------------------------------------


def _dense_brought_to(form: _Dense, old: Any) -> Any:
    if form.kind != "tensor":
        numpy = sys.modules["numpy"]
        array = numpy.ndarray(form.shape, form.dtype, form.content)
        if form.kind == "number":
            return array[()]
        is_same = type(old) is numpy.ndarray and old.flags.writeable and 0 not in old.strides
        if is_same and (old.shape, old.dtype) == (form.shape, form.dtype):
            old[...] = array
            return old
        return array.copy()
    made = torch.empty(form.shape, dtype=form.dtype)
    if form.content:
        ctypes.memmove(made.data_ptr(), form.content, len(form.content))
    if type(old) is not Tensor or old.requires_grad or old.layout is not torch.strided:
        return made
    if (tuple(old.shape), old.dtype, old.device) != (form.shape, form.dtype, made.device):
        return made
    if old.is_inference() or 0 in old.stride():  # Parts of the latter lie in one place.
        return made
    return old.copy_(made)


def _container_brought_to(form: _Parts, old: Any) -> Any:
    if form.kind is tuple:
        return tuple(map(_part_brought_to, form.parts, _old_parts(form, old)))
    if type(old) is not form.kind:
        old = _made(form)
    for name, part in form.attributes:
        old.__dict__[name] = _part_brought_to(part, old.__dict__.get(name, NOTHING))
    if issubclass(form.kind, dict):
        parts = {key: _part_brought_to(part, old.get(key, NOTHING)) for key, part in form.parts}
        return refill(old, parts)
    return refill(old, list(map(_part_brought_to, form.parts, _old_parts(form, old))))


def _part_brought_to(form: Any, old: Any) -> Any:
    """Return it in place of `old`; what a container has of tensors may be parts of others."""
    return brought_to(form, NOTHING if isinstance(form, _Dense) else old)


def _can_be_made(form: _Parts) -> bool:
    if form.kind in _CONTAINERS:
        return form.kind is not defaultdict or _class_named(form.how) is not None
    is_usual = form.kind.__new__ in (list.__new__, dict.__new__, set.__new__)
    return is_usual and not issubclass(form.kind, defaultdict)


def _made(form: _Parts) -> Any:
    if form.kind is deque:
        return deque(maxlen=form.how)  # type: ignore[arg-type]
    if form.kind is defaultdict:
        return defaultdict(_class_named(form.how))
    made: Any = form.kind.__new__(form.kind)  # type: ignore[call-overload]
    return made


def refill(container: Any, content: Any) -> Any:
    """Have a container hold other things, whatever a class of the program's makes of that."""
    bases: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)
    base = next(kind for kind in bases if isinstance(container, kind))
    base.clear(container)
    (base.extend if base in (list, deque) else base.update)(container, content)
    return container


def refilled(old: Any, new: Any, done: dict[int, Any] | None = None) -> Any:
    """Return `old` with what `new` holds, lists and dicts in it likewise; else `new` itself."""
    done = {} if done is None else done  # By id of what is new: it may hold itself.
    if type(old) is not type(new) or not isinstance(old, (dict, list, set)):
        return done.get(id(new), new)
    if id(new) in done:
        return done[id(new)]
    done[id(new)] = old
    if isinstance(old, dict):
        return refill(old, {key: refilled(old.get(key), part, done) for key, part in new.items()})
    if isinstance(old, list):
        there = [*old[: len(new)], *[None] * (len(new) - len(old))]
        return refill(old, [refilled(was, part, done) for was, part in zip(there, new)])
    return refill(old, new)


def _old_parts(form: _Parts, old: Any) -> list[Any]:
    """Return what lies where a list or a tuple has its parts, as many."""
    is_same = type(old) is form.kind and not issubclass(form.kind, set)
    there: list[Any] = [*old][: len(form.parts)] if is_same else []
    return there + [NOTHING] * (len(form.parts) - len(there))


def _drawn_brought_to(form: _Drawn, old: Any) -> Any:
    kind, state = form
    if old is NOTHING or _kind_of_generator(old) != kind:
        old = _made_generator(kind)
    if kind == "random":
        old.setstate(state)
    elif kind == "torch":
        old.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif kind == "RandomState":
        old.set_state(brought_to(state))
    else:
        old.bit_generator.state = brought_to(state)
    return old


def _made_generator(kind: str) -> Any:
    if kind in ("random", "torch"):
        return random.Random() if kind == "random" else torch.Generator()
    made = getattr(sys.modules["numpy"].random, kind)()
    return made if kind == "RandomState" else sys.modules["numpy"].random.Generator(made)
