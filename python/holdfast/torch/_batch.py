"""The batch of a step, which the step must leave as it is: a void step is made again with it.

A batch consists of tensors, arrays and plain values, in containers that hold nothing else. Other
types are refused. Each try of a step gets new containers, so the body may take parts out. A changed
tensor is found by torch's count of its changes, and in a process's first step by its contents; a
changed array always by its contents.
"""

from __future__ import annotations

import copy
import dataclasses
import datetime
import enum
import pathlib
import sys
from collections import UserDict, deque
from typing import Any, Final

import torch

from holdfast._errors import UserError
from holdfast.torch._copies import digests_of, digests_of_memory
from holdfast.torch._private import change_counts

_PLAIN: Final = (
    *(bool, int, float, complex, str, bytes, type(None), range, slice, enum.Enum),
    *(datetime.date, datetime.time, datetime.timedelta, pathlib.PurePath),
    *(torch.dtype, torch.device, torch.Size, type),
)
_EXACT: Final = frozenset((bool, int, float, complex, str, bytes, type(None)))
_NAMES: Final = (enum.Enum, type, datetime.date, datetime.time, pathlib.PurePath)
_CONTAINERS: Final = (tuple, list, deque, set, frozenset, dict)
_LIBRARY: Final = "transformers."
_DEEPEST: Final = 32


class Batch:
    """One batch. UserError: it holds something whose changes nobody could notice."""

    def __init__(self, given: Any, by_contents: bool) -> None:
        """Note what the batch is now. `by_contents`: note the contents of tensors, too."""
        self._given = given
        self._is_new = True
        self._by_contents = by_contents
        self._leaves: list[Any] = []
        self._kept = self._fresh(given, 0)
        self._mark = self._marks()

    def give(self) -> Any:
        """Return the batch for one try of its step, in containers that are not used again."""
        if self._is_new:
            self._is_new, given, self._given = False, self._given, None
            return given
        given = self._kept
        self._leaves.clear()
        self._kept = self._fresh(given, 0)
        return given

    def see_that_it_is_unchanged(self, n: int) -> None:
        """Raise UserError if step `n` has changed the batch."""
        if self._marks() != self._mark:
            raise UserError(
                f"step {n} changed its batch in place, and would be made again with other data if "
                "it was void; let the body change a copy: `x = x.clone()`, `a = a.copy()`"
            )

    def _marks(self) -> tuple[Any, ...]:
        """Return what differs if a part was changed."""
        tensors = [leaf for leaf in self._leaves if isinstance(leaf, torch.Tensor)]
        arrays = [leaf for leaf in self._leaves if not isinstance(leaf, torch.Tensor)]
        counts = [-1 if t.is_inference() else change_counts([t])[0] for t in tensors]
        read = [t for t in tensors if _has_bytes(t) and (self._by_contents or t.is_inference())]
        return (
            *counts,
            *(digests_of(read) if read else ()),
            *(digests_of_memory([_dense(array) for array in arrays]) if arrays else ()),
        )

    def _fresh(self, value: Any, depth: int) -> Any:
        """Return the same tensors and arrays, in containers that nobody else changes; note them."""
        if isinstance(value, torch.Tensor):
            if type(value) is torch.Tensor and not (value.requires_grad or value.is_inference()):
                value = value.detach()  # So a gradient that the body gives it does not stay.
            self._leaves.append(value)
            return value
        if type(value) in _EXACT:
            return value
        if isinstance(value, _PLAIN) and (isinstance(value, _NAMES) or not _has_attributes(value)):
            return value
        if depth > _DEEPEST:
            raise UserError("a batch of steps() is nested too deeply; does it hold itself?")
        if _is_array(value):
            self._leaves.append(value)
            return value
        try:
            own = self._container(value, depth + 1)
        except UserError:
            raise
        except Exception:  # A class of the program's own, which can not be copied by its parts.
            own = None
        if own is None:
            of = " of objects" if getattr(getattr(value, "dtype", None), "hasobject", 0) else ""
            raise UserError(
                f"a batch of steps() holds a {type(value).__qualname__}{of}, and nobody can tell "
                "whether a step changes it; give tensors, arrays and plain values, in lists, "
                "tuples, dicts or dataclasses: DataLoader(..., collate_fn=...)"
            )
        return own

    def _container(self, value: Any, depth: int) -> Any:
        """Return a copy of a container; None: this is no container, or has attributes as well."""
        own: Any
        if isinstance(value, UserDict):  # A tokenizer makes one, with attributes that never change.
            if vars(value).keys() > {"data"} and not type(value).__module__.startswith(_LIBRARY):
                return None
            own = copy.copy(value)
            own.data = self._fresh(value.data, depth)
            return own
        if isinstance(value, _CONTAINERS) and _has_attributes(value):
            return None
        if isinstance(value, tuple):
            parts = [self._fresh(part, depth) for part in value]
            made = type(value) if hasattr(value, "n_sequence_fields") else None  # torch.max()'s.
            return made(parts) if made else tuple.__new__(type(value), parts)
        if isinstance(value, (list, deque)):
            own = copy.copy(value)
            for i, part in enumerate(value):
                own[i] = self._fresh(part, depth)
            return own
        if isinstance(value, (set, frozenset)):
            for part in value:
                self._fresh(part, depth)
            return copy.copy(value)
        if isinstance(value, dict):
            own = copy.copy(value)
            for key in value:
                own[key] = self._fresh(value[key], depth)
            return own
        if dataclasses.is_dataclass(value):
            names = {field.name for field in dataclasses.fields(value)}
            if not getattr(value, "__dict__", {}).keys() <= names:
                return None
            made_of_fields = copy.copy(value)
            for name in names:
                if hasattr(value, name):
                    part = self._fresh(getattr(value, name), depth)
                    object.__setattr__(made_of_fields, name, part)
            return made_of_fields
        return None


def _has_attributes(value: Any) -> bool:
    """Return whether an object of a subclass of a built-in type has attributes."""
    if getattr(value, "__dict__", None):
        return True
    return any(vars(kind).get("__slots__") for kind in type(value).__mro__)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return False
    kinds = (numpy.ndarray, numpy.memmap)
    return not value.dtype.hasobject and (type(value) in kinds or isinstance(value, numpy.generic))


def _dense(array: Any) -> tuple[Any, int, int]:
    """Return an array's memory in one piece: its holder, its address, its bytes."""
    whole = sys.modules["numpy"].ascontiguousarray(array)
    return whole, whole.ctypes.data, whole.nbytes


def _has_bytes(tensor: torch.Tensor) -> bool:
    """Whether a tensor's contents can be read directly."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    return type(tensor) is torch.Tensor and not tensor.is_quantized and not tensor.is_nested
