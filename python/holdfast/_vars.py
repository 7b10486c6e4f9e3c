"""Plain values that a program keeps with every step: the result of `state.vars(...)`."""

from __future__ import annotations

import ctypes
import datetime
import io
import pickle
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast._errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, dtype

LIMIT: Final = 1 << 22  # Bytes of all values together, pickled.
_PLAIN: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))
_DATES: Final = (datetime.datetime, datetime.date, datetime.timedelta)
_ROWS: Final = (list, tuple, set, frozenset, deque)
_TABLES: Final = (dict, OrderedDict, Counter, defaultdict)
_DEEPEST: Final = 32


class _ByValue(pickle.Pickler):
    """Pickles tensors by their contents alone. torch would add their storage, which may differ."""

    def reducer_override(self, thing: Any) -> Any:
        if not _is_tensor(thing):
            return NotImplemented
        dense = thing.detach().resolve_conj().resolve_neg().contiguous()
        return _tensor, (dense.dtype, tuple(dense.shape), raw_bytes(dense))


def _tensor(of: dtype, shape: tuple[int, ...], raw: bytes) -> Tensor:
    import torch

    flat = torch.frombuffer(bytearray(raw), dtype=of) if raw else torch.empty(0, dtype=of)
    return flat.view(shape)


def raw_bytes(tensor: Tensor) -> bytes:
    """Return a copy of a tensor's elements. Needs no NumPy: PyTorch's wheel does not bring it."""
    flat = tensor.detach().cpu().contiguous()
    size = flat.numel() * flat.element_size()
    return bytes((ctypes.c_char * size).from_address(flat.data_ptr())) if size else b""


def _is_tensor(thing: Any) -> bool:
    """Return whether this is a PyTorch tensor. Never imports PyTorch: a program may have none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.Tensor)


def dumps(value: Any) -> bytes:
    """Pickle a value. Equal values give equal bytes."""
    pickled = io.BytesIO()
    _ByValue(pickled, pickle.HIGHEST_PROTOCOL).dump(value)
    return pickled.getvalue()


class Vars:
    """Plain values by name, read and set as attributes. Not thread-safe."""

    __slots__ = ("_all", "_names", "_refuse")

    def __init__(
        self,
        everything: dict[str, Any],
        names: frozenset[str],
        refuse: Callable[[str, Any], None],
    ) -> None:
        """Keep the values of all Vars of a State in `everything`; `refuse` raises UserError."""
        object.__setattr__(self, "_refuse", refuse)
        object.__setattr__(self, "_all", everything)
        object.__setattr__(self, "_names", names)

    def __getattr__(self, name: str) -> Any:
        """Return a value."""
        if name not in self._names:
            raise AttributeError(f"state.vars(...) was given no `{name}`")
        return self._all[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a value. UserError if it can not be kept, or was not named when this was made."""
        if name not in self._names:
            raise UserError(
                f"state.vars(...) was given no `{name}`; name it there, with its first value: "
                f"state.vars(..., {name}=...)"
            )
        see_that_it_is_plain(name, value)
        self._refuse(name, value)
        self._all[name] = value

    def __repr__(self) -> str:
        """Show the values."""
        return f"Vars({', '.join(f'{n}={self._all[n]!r}' for n in sorted(self._names))})"


class Values:
    """The values of all Vars of a State. Some may be a predecessor's that are not named yet."""

    def __init__(self) -> None:
        """Begin without values."""
        self.all: dict[str, Any] = {}
        self._named: set[str] = set()

    def name(
        self, first: dict[str, Any], refuse: Callable[[str, Any], None] = lambda name, value: None
    ) -> Vars:
        """Return Vars of the names in `first`, with these values if no predecessor had others.

        `refuse` raises UserError for a value that can not be kept.
        """
        for name, value in first.items():
            if name in self._named:
                raise UserError(f"state.vars(...) was given `{name}` before; name each once")
            see_that_it_is_plain(name, value)
            refuse(name, value)
            self._named.add(name)
            self.all.setdefault(name, value)
        return Vars(self.all, frozenset(first), refuse)

    def packed(self) -> bytes:
        """Return all values, pickled. UserError: one can not be kept any more."""
        see_that_all_are_plain(self.all)
        return see_that_it_fits(self.all) if self.all else b""

    def put_back(self, packed: bytes) -> None:
        """Set all to what packed() has returned. Lists and the like are changed in place."""
        places = Places()
        for name, value in (pickle.loads(packed) if packed else {}).items():
            self.all[name] = into(self.all.get(name), value, places)


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors that a plain value holds."""
    if _is_tensor(value):
        return [value]
    if type(value) in _TABLES:
        value = value.values()
    elif type(value) not in _ROWS:
        return []
    return [tensor for part in value if type(part) not in _PLAIN for tensor in tensors_in(part)]


def see_that_it_is_plain(name: str, value: Any) -> None:
    """Raise UserError if a value can not be kept."""
    if why := _why_not(value, 0):
        raise UserError(
            f"`{name}` can not be kept by state.vars(...): {why}. Plain values can: numbers, text, "
            "lists, dicts and sets of them, dense CPU tensors and NumPy arrays. Give an object "
            f"with state_dict() and load_state_dict() to State: State(..., {name}=...)"
        )
    see_that_it_fits({name: value})


def is_plain(value: Any) -> bool:
    """Return whether a value is of a kind that can be kept, however large it is."""
    return not _why_not(value, 0)


def see_that_it_fits(values: dict[str, Any]) -> bytes:
    """Return the values, pickled. UserError: they are too large, or one can not be pickled."""
    try:
        raw = dumps(values)
    except Exception as error:
        raise UserError(f"{_largest(values)} can not be pickled: {error}") from error
    if len(raw) > LIMIT:
        raise UserError(
            f"state.vars(...) holds {len(raw):,} bytes; {LIMIT:,} can be kept, and "
            f"{_largest(values)} is the largest. Keep a tensor of a fixed size instead, given to "
            "State by its name: State(..., name=tensor); or write it to a file now and then"
        )
    return raw


def _largest(values: dict[str, Any]) -> str:
    def size(name: str) -> int:
        try:
            return len(dumps(values[name]))
        except Exception:
            return sys.maxsize

    return f"`{max(values, key=size)}`"


def see_that_all_are_plain(values: dict[str, Any]) -> None:
    """Raise UserError if a value now holds something that can not be kept, as after append()."""
    for name, value in values.items():
        if _why_not(value, 0):
            see_that_it_is_plain(name, value)


def _why_not(value: Any, depth: int) -> str:
    """Return why a value can not be kept; empty: it can."""
    kind = type(value)
    if kind in _PLAIN or kind in _DATES:
        return ""
    if depth > _DEEPEST:
        return "it is nested too deep, or holds itself"
    if kind in _TABLES:
        if kind is defaultdict and value.default_factory not in (None, int, float, list, dict, set):
            return "it is a defaultdict of something that is not int, float, list, dict or set"
        parts = [*value.keys(), *value.values()]
    elif kind in _ROWS:
        parts = value
    else:
        return _why_no_array(value)
    if _PLAIN.issuperset(map(type, parts)):
        return ""
    return next((why for part in parts if (why := _why_not(part, depth + 1))), "")


def _why_no_array(value: Any) -> str:
    if _is_tensor(value):
        if value.device.type != "cpu" or str(value.layout) != "torch.strided":
            return f"it is a tensor on {value.device} with layout {value.layout}"
        if value.requires_grad:
            return "it is a tensor with a graph behind it: detach() it"
        return "" if not hasattr(value, "to_local") else "it is a DTensor"
    numpy = sys.modules.get("numpy")
    if numpy is not None and (type(value) is numpy.ndarray or isinstance(value, numpy.generic)):
        return "it is an array of objects" if value.dtype.hasobject else ""
    return f"it is, or holds, a {type(value).__module__}.{type(value).__qualname__}"


class Places:
    """Which objects and which memory have been filled: each only once.

    What was two values in the last step may be one object now, as after `run.best = run.last`.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self.done: dict[int, Any] = {}  # By id of the new object, which may hold itself.
        self._objects: dict[int, Any] = {}
        self._memory: list[tuple[int, int]] = []

    def take(self, old: Any) -> bool:
        """Return whether nothing was put into this object, or its memory, before."""
        memory = _memory_of(old)
        if id(old) in self._objects or any(_overlap(memory, other) for other in self._memory):
            return False
        self._objects[id(old)] = old
        if memory is not None:
            self._memory.append(memory)
        return True


def _overlap(one: tuple[int, int] | None, other: tuple[int, int]) -> bool:
    return one is not None and one[0] < other[1] and other[0] < one[1]


def _memory_of(value: Any) -> tuple[int, int] | None:
    """Return the addresses of all that a tensor or an array is a view of."""
    if _is_tensor(value):
        storage = value.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    numpy = sys.modules.get("numpy")
    if numpy is None or type(value) is not numpy.ndarray:
        return None
    while type(value.base) is numpy.ndarray:
        value = value.base
    address = int(value.__array_interface__["data"][0])
    return address, address + int(value.nbytes)


def into(old: Any, new: Any, places: Places | None = None) -> Any:
    """Return `new`. If `old` is of the same kind, change it in place and return it instead."""
    places = places or Places()
    if id(new) in places.done:
        return places.done[id(new)]
    if type(old) is not type(new) or not _is_changeable(old, new) or not places.take(old):
        return _with_parts(new, places)
    places.done[id(new)] = old
    if _is_tensor(new):
        return old.copy_(new)
    if isinstance(new, dict):
        parts = {key: into(old.get(key), part, places) for key, part in new.items()}
        old.clear()
        old.update(parts)
    elif isinstance(new, list):
        there = [*old[: len(new)], *[None] * (len(new) - len(old))]
        old[:] = [into(was, part, places) for was, part in zip(there, new)]
    elif isinstance(new, (set, deque)):
        old.clear()
        (old.update if isinstance(old, set) else old.extend)(new)
    else:
        old[...] = new
    return old


def _with_parts(new: Any, places: Places) -> Any:
    """Return a new object. What it holds may have been put into old objects already."""
    places.done[id(new)] = new
    if isinstance(new, dict):
        for key, part in new.items():
            new[key] = into(None, part, places)
    elif isinstance(new, list):
        new[:] = [into(None, part, places) for part in new]
    return new


def _is_changeable(old: Any, new: Any) -> bool:
    """Return whether `old`, which is of the same type, can be given the contents of `new`."""
    if _is_tensor(new):
        is_same = (old.shape, old.dtype, old.device) == (new.shape, new.dtype, new.device)
        return is_same and not (old.requires_grad or old.is_inference() or 0 in old.stride())
    if isinstance(new, (dict, list, set, deque)):
        return True
    numpy = sys.modules.get("numpy")
    if numpy is None or type(new) is not numpy.ndarray or not old.flags.writeable:
        return False
    return bool((old.shape, old.dtype) == (new.shape, new.dtype))
