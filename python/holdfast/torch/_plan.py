"""The places of tensors in an image, and prepared copies to these places."""

from __future__ import annotations

import math
import pickle
from hashlib import blake2b
from typing import Any, Final, NamedTuple
from weakref import finalize

import torch
from torch import Tensor

from holdfast._guards import Guards
from holdfast.torch._copies import Copies
from holdfast.torch._optimizers import local

ALIGN: Final = 64
COMMON_DIGEST: Final = 32  # Bytes.

Key = tuple[Any, ...]

# A DTensor: its shape; the shape and the ranks of its mesh; its placements, for each dimension of
# the mesh the one of the tensor that it cuts, or words for another placement.
Whole = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int | str, ...]]


class Place(NamedTuple):
    """The place of a tensor in an image."""

    key: Key
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    whole: Whole | None  # The DTensor of which it is the local part.


class Plan:
    """The places of a list of tensors in an image, and prepared copies to these places."""

    def __init__(
        self,
        keys: list[Key],
        tensors: list[Tensor],
        is_common: list[bool],
        starts: tuple[int, int],
        names: dict[str, Any],
    ) -> None:
        """Lay out the tensors. `starts`: offsets of those common to all ranks, and of others.

        `names`: what names_of() returns.
        """
        self.marks = marks_of(tensors)
        self.tensors = tensors  # Held, so that no other tensor gets the same id.
        self.places: list[Place] = []
        ends = list(starts)
        for key, tensor, shared in zip(keys, tensors, is_common):
            part = local(tensor)
            at = ends[0 if shared else 1]
            whole = None if part is tensor else _whole(tensor)
            self.places.append(Place(key, part.dtype, tuple(part.shape), at, whole))
            ends[0 if shared else 1] += -(-part.nbytes // ALIGN) * ALIGN
        self.common_end, self.end = ends
        self.common = digest_of_common(self.places, starts[1])
        self.pickled = pickle.dumps((self.places, names), pickle.HIGHEST_PROTOCOL)
        self.copies: dict[int, Copies] = {}
        # What is restored after a void step. Memory that other processes share can not be guarded.
        # Nor can memory that a device reads by itself.
        parts = [part for part in map(local, tensors) if _is_own(part)]
        self._storages = [part.untyped_storage() for part in parts]  # Not freed while guarded.
        self._guards = Guards((part.data_ptr(), part.nbytes) for part in parts)
        finalize(self, self._guards.release)

    def release(self) -> None:
        """Let go of the tensors: another plan takes its place."""
        self._guards.release()

    def copy_to(self, memory: Tensor) -> None:
        """Copy all tensors into an image."""
        address = memory.data_ptr()
        if address not in self.copies:
            full = [(p, t) for p, t in zip(self.places, self.tensors) if local(t).numel()]
            self.copies[address] = Copies(
                [view_of(memory, place) for place, _ in full], [local(t).detach() for _, t in full]
            )
        self.copies[address].make()


def table_in(table: bytes | memoryview) -> tuple[list[Place], dict[str, Any]]:
    """Return what the table of an image lists, which a Plan has pickled: places, and the names."""
    places, names = pickle.loads(table)
    return places, names


def _whole(tensor: Any) -> Whole:
    mesh = tensor.device_mesh
    cuts = (p.dim if type(p).__name__ == "Shard" else str(p) for p in tensor.placements)
    ranks = tuple(mesh.mesh.flatten().tolist())
    return tuple(tensor.shape), tuple(mesh.shape), ranks, tuple(cuts)


def _is_own(part: Tensor) -> bool:
    is_shared = part.is_shared()  # type: ignore[no-untyped-call]
    return part.is_contiguous() and not is_shared and not part.is_pinned()


def digest_of_common(places: list[Place], end: int) -> bytes:
    """Return a digest of the places before offset `end`."""
    common = [place for place in places if place.offset < end]
    return blake2b(repr(common).encode(), digest_size=COMMON_DIGEST).digest()


def marks_of(tensors: list[Tensor]) -> list[tuple[int, int]]:
    """Return values that change if a tensor is replaced or moves."""
    return [(id(tensor), local(tensor).data_ptr()) for tensor in tensors]


def view_of(memory: Tensor, place: Place) -> Tensor:
    """Return the tensor at a place in an image, as a view."""
    end = place.offset + bytes_of(place)
    return memory[place.offset : end].view(place.dtype).view(place.shape)


def bytes_of(place: Place) -> int:
    """Return the size in bytes of the tensor at a place."""
    return math.prod(place.shape) * place.dtype.itemsize
