"""Pickle data that contains MindSpore's tensors. Name the class of anything that is no data.

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
# Classes and functions that make those again.
_MAKERS: Final = frozenset({"collections", "copyreg", "numpy", "random", "_codecs"})
_ROOMS: Final = _MAKERS | {"builtins"}


class NoDataError(TypeError):
    """Something is no data: an object of this class."""

    def __init__(self, kind: type) -> None:
        """`kind`: its class."""
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
        """`others`: ids of parameters that are kept elsewhere; None: all parameters are."""
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._others = others

    def reducer_override(self, thing: Any) -> Any:
        """Return how to pickle a thing that is of no plain type."""
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
        """Pickle a thing that is data, or that makes data again."""
        if kind is defaultdict and not isinstance(thing.default_factory, (type, type(None))):
            return dict, (dict(thing),)  # give_back() leaves its factory to it.
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
    """Pickles the outputs of a network, of any kind, with zeros for those that are too large."""

    def __init__(self, file: io.BytesIO, room: int) -> None:
        super().__init__(file, ())
        self._room, self.lacks = room, False

    def _fits(self, size: int) -> bool:
        self.lacks |= size > self._room
        return size <= self._room

    def tensor(self, thing: Any, is_parameter: bool) -> Any:
        """Pickle a tensor. array() gets its array."""
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
    """Pickle a network's outputs, the loss first. Return also whether one was too large."""
    file = io.BytesIO()
    pickler = _Outputs(file, room)
    pickler.dump(outputs)
    return file.getvalue(), pickler.lacks


def dumps(value: Any, others: Container[int] | None = None) -> bytes:
    """Pickle data. NoDataError: it holds something else, or a parameter in `others` (None: any)."""
    file = io.BytesIO()
    try:
        _Pickler(file, others).dump(value)
    except (RecursionError, pickle.PicklingError):
        raise NoDataError(type(value)) from None
    return file.getvalue()
