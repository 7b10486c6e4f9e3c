"""Pickle data, MindSpore's tensors included. Refuse anything else by the name of its class.

Data is numbers, texts, lists, dicts, sets, NumPy's arrays, tensors, parameters that are kept in no
other way, and random generators. Data that is read back shares nothing with the original.
"""

from __future__ import annotations

import io
import pickle
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Container
from typing import Any, Final

import numpy as np

_KNOWN: Final = (
    *(np.generic, np.random.RandomState, np.random.Generator, np.random.BitGenerator, np.dtype),
    *(Counter, OrderedDict, defaultdict, deque, bytearray, complex, random.Random),
)
# Modules of the classes and functions by which pickle makes _KNOWN things again.
_MAKERS: Final = frozenset({"collections", "copyreg", "numpy", "random", "_codecs"})
_ROOMS: Final = _MAKERS | {"builtins"}


class NoDataError(TypeError):
    """An object can not be pickled as data; `kind` is its class."""

    def __init__(self, kind: type) -> None:
        """`kind`: the class of the object."""
        super().__init__(f"an object of class {kind.__name__} is no data")
        self.kind = kind


def _made(array: Any, dtype: str, about: tuple[str, bool] | None) -> Any:
    import mindspore

    tensor = mindspore.Tensor(array, getattr(mindspore, dtype.lower()))
    return mindspore.Parameter(tensor, *about) if about else tensor


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    if isinstance(dtype, np.dtype):
        return np.zeros(shape, dtype)
    import mindspore

    return mindspore.ops.zeros(shape, getattr(mindspore, dtype.lower()))


class _Pickler(pickle.Pickler):
    """Pickles data."""

    def __init__(self, file: io.BytesIO, others: Container[int] | None) -> None:
        """`others`: ids of parameters that are kept elsewhere, and so refused; None: refuse all."""
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._others = others

    def reducer_override(self, thing: Any) -> Any:
        """Return how to pickle a thing whose type is not built into pickle."""
        kind = type(thing)
        if kind.__name__ in ("Tensor", "Parameter") and hasattr(thing, "asnumpy"):
            return self.tensor(thing, kind.__name__ == "Parameter")
        if isinstance(thing, np.ndarray):
            return self.array(thing)
        return self.other(thing, kind)

    def tensor(self, thing: Any, is_parameter: bool) -> Any:
        """Pickle a tensor of MindSpore's."""
        if not is_parameter:
            return _made, (thing.asnumpy(), str(thing.dtype), None)
        if self._others is None or id(thing) in self._others or thing.has_init:
            raise NoDataError(type(thing))
        return _made, (thing.asnumpy(), str(thing.dtype), (thing.name, thing.requires_grad))

    def array(self, thing: Any) -> Any:
        """Pickle an array."""
        if thing.dtype.hasobject:
            raise NoDataError(type(thing))
        return NotImplemented

    def other(self, thing: Any, kind: type) -> Any:
        """Pickle any other thing if it is data, or a class or function that makes data again."""
        if kind is defaultdict and not isinstance(thing.default_factory, (type, type(None))):
            return dict, (dict(thing),)  # give_back() keeps the factory.
        of = thing if isinstance(thing, type) or callable(thing) else kind
        room = (getattr(of, "__module__", None) or "").partition(".")[0]
        if isinstance(thing, type):
            known = room in _ROOMS
        elif callable(thing):
            known = room in _MAKERS or thing in (_made, _zeros)
        else:
            known = room in _ROOMS and isinstance(thing, _KNOWN)
        if not known:
            raise NoDataError(thing if isinstance(thing, type) else kind)
        return NotImplemented


class _Outputs(_Pickler):
    """Pickles a network's outputs of any kind, with zeros in place of what is too large."""

    def __init__(self, file: io.BytesIO, room: int) -> None:
        super().__init__(file, ())
        self._room, self.lacks = room, False

    def _fits(self, size: int) -> bool:
        self.lacks |= size > self._room
        return size <= self._room

    def tensor(self, thing: Any, is_parameter: bool) -> Any:
        """Pickle a tensor, by its array."""
        if self._fits(int(thing.nbytes)):
            return super().tensor(thing, False)
        return _zeros, (thing.shape, str(thing.dtype))

    def array(self, thing: Any) -> Any:
        """Pickle an array."""
        if not self._fits(thing.nbytes):
            return _zeros, (thing.shape, thing.dtype)
        self._room -= thing.nbytes
        return NotImplemented

    def other(self, thing: Any, kind: type) -> Any:
        """Pickle anything else."""
        return NotImplemented


def dumps_outputs(outputs: Any, room: int) -> tuple[bytes, bool]:
    """Pickle a network's outputs, in order, within `room` bytes. Return also whether some lack."""
    file = io.BytesIO()
    pickler = _Outputs(file, room)
    pickler.dump(outputs)
    return file.getvalue(), pickler.lacks


def dumps(value: Any, others: Container[int] | None = None) -> bytes:
    """Pickle data. NoDataError: it holds something else, or a parameter that `others` refuses."""
    file = io.BytesIO()
    try:
        _Pickler(file, others).dump(value)
    except (RecursionError, pickle.PicklingError):
        raise NoDataError(type(value)) from None
    return file.getvalue()
