"""Copies and digests of tensors, made by the native library."""

from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from holdfast._abi import U64, lib
from holdfast.torch._private import copy_each


class Copies:
    """Prepared copies of tensors. Dense tensors are copied as bytes, past the caches."""

    def __init__(self, targets: list[Tensor], sources: list[Tensor]) -> None:
        dense = [(t, s) for t, s in zip(targets, sources) if _is_dense(s)]
        self._held = sources  # So that no other memory gets these addresses.
        self._count = len(dense)
        pointers, sizes = ctypes.c_void_p * self._count, ctypes.c_uint64 * self._count
        self._to = pointers(*(t.data_ptr() for t, _ in dense))
        self._from = pointers(*(s.data_ptr() for _, s in dense))
        self._bytes = sizes(*(s.nbytes for _, s in dense))
        others = [(t, s) for t, s in zip(targets, sources) if not _is_dense(s)]
        self._targets, self._sources = [t for t, _ in others], [s for _, s in others]

    def make(self) -> None:
        """Make the copies. Requires: the tensors have not moved."""
        lib.hf_copy(self._count, self._to, self._from, self._bytes)
        if self._sources:
            copy_each(self._targets, self._sources)


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's bytes are its elements, in order, and can be read directly."""
    if tensor.device.type != "cpu" or not tensor.data_ptr():  # No address: it is made of others.
        return False
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def digests_of(tensors: list[Tensor]) -> ctypes.Array[ctypes.c_uint64]:
    """Return for each tensor a digest of 64 bits over its bytes."""
    dense = [tensor.detach().contiguous() for tensor in tensors]
    return digests_of_memory([(tensor, tensor.data_ptr(), tensor.nbytes) for tensor in dense])


def digests_of_memory(pieces: list[tuple[Any, int, int]]) -> ctypes.Array[ctypes.c_uint64]:
    """Return a digest of each piece of memory, given as (holder, address, size in bytes)."""
    count = len(pieces)
    digests = (U64 * count)()
    pointers = (ctypes.c_void_p * count)(*(address for _, address, _ in pieces))
    lib.hf_digest(count, pointers, (U64 * count)(*(size for _, _, size in pieces)), digests)
    return digests
