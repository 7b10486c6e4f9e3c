"""Keep everything that a step depends on as one image of bytes, and bring it back.

An image describes itself: a plan (which tensor lies where), the pickled rest, the tensors. The plan
may change, as when an optimizer makes its state in the first step. Only the capacity is fixed.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor

from holdfast._errors import UserError
from holdfast.torch._kept import Kept
from holdfast.torch._plan import ALIGN, Key, Plan, bytes_of, marks_of, view_of

_HEADER: Final = struct.Struct("<8sQQQ")
_MAGIC: Final = b"HFTORCH1"
_LEAST_OBJECTS: Final = 1 << 20
_OUTGROWN: Final = (
    "the state has outgrown the room that was measured at the start ({} bytes); let what is kept "
    "have its full size when State is made"
)


class Image:
    """Writes and reads the images of one State."""

    def __init__(self, kept: Kept, objects: dict[str, Any]) -> None:
        """Measure `objects`, which the first image will hold besides the tensors."""
        self._kept = kept
        self._plan: Plan | None = None
        self._written: dict[int, bytes] = {}  # By address: the plan that lies there.
        size, tensors = kept.room_of_tensors()
        room = 8 * len(self._pickle(objects)) + 512 * (8 + 4 * tensors) + kept.room
        self._start = _HEADER.size + max(_LEAST_OBJECTS, 1 << (room - 1).bit_length())
        self._start += -self._start % ALIGN
        total = self._start + size + (1 << 20)
        self.bytes = total + -total % (1 << 20)  # Unused bytes take no memory.

    def agree(self, first: Callable[[bytes], bytes]) -> None:
        """Take the size of the rank's first process, which `first` returns, or be the first."""
        with suppress(UserError):  # No room; its successors measure it themselves.
            sizes = first(f"{self._start} {self.bytes}".encode()).split()
            self._start, self.bytes = map(int, sizes)

    def _pickle(self, objects: dict[str, Any]) -> bytes:
        try:
            return pickle.dumps({**objects, **self._kept.objects()}, pickle.HIGHEST_PROTOCOL)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"something that State keeps can not be pickled: {error}") from error

    @torch.no_grad()
    def write(self, view: memoryview, objects: dict[str, Any], with_gradients: bool) -> None:
        """Fill an image."""
        memory = torch.frombuffer(view, dtype=torch.uint8)
        found = list(self._kept.walk(with_gradients))
        tensors = [tensor for _, tensor in found]
        plan = self._plan
        if plan is None or plan.marks != marks_of(tensors):
            plan = Plan([key for key, _ in found], tensors, self._start)
            self._plan = plan
        rest = self._pickle(objects)
        used = _HEADER.size + len(plan.pickled) + len(rest)
        if used > self._start or plan.end > len(view):
            raise UserError(_OUTGROWN.format(len(view)))
        plan.copy_to(memory)
        address = memory.data_ptr()
        at = _HEADER.size + len(plan.pickled)
        if self._written.get(address) is not plan.pickled:
            view[_HEADER.size : at] = plan.pickled
            self._written[address] = plan.pickled
        view[at : at + len(rest)] = rest
        _HEADER.pack_into(view, 0, _MAGIC, len(plan.pickled), len(rest), 0)

    def write_again(self, old: memoryview, new: memoryview, changes: dict[str, Any]) -> None:
        """Fill an image with the contents of another one, but change some of its objects."""
        _, plan_size, rest_size, _ = _HEADER.unpack_from(old, 0)
        at = _HEADER.size + plan_size
        places = pickle.loads(old[_HEADER.size : at])
        objects = {**pickle.loads(old[at : at + rest_size]), **changes}
        rest = pickle.dumps(objects, pickle.HIGHEST_PROTOCOL)
        if at + len(rest) > self._start:
            raise UserError(_OUTGROWN.format(len(new)))
        last = max(places, key=lambda place: place.offset, default=None)
        end = self._start if last is None else last.offset + bytes_of(last)
        new[_HEADER.size : at] = old[_HEADER.size : at]
        new[at : at + len(rest)] = rest
        new[self._start : end] = old[self._start : end]
        self._written.clear()
        _HEADER.pack_into(new, 0, _MAGIC, plan_size, len(rest), 0)

    def tensors(self, view: memoryview) -> dict[Key, Tensor]:
        """Return the tensors of an image, without copies."""
        _, plan_size, _, _ = _HEADER.unpack_from(view, 0)
        places = pickle.loads(view[_HEADER.size : _HEADER.size + plan_size])
        memory = torch.frombuffer(view, dtype=torch.uint8)
        return {place.key: view_of(memory, place) for place in places}

    @torch.no_grad()
    def read(self, view: memoryview) -> dict[str, Any]:
        """Bring everything to what an image holds; return its objects."""
        magic, plan_size, rest_size, _ = _HEADER.unpack_from(view, 0)
        if magic != _MAGIC:
            raise UserError(
                "the state of this rank was written by another kind of program; a job goes on with "
                "the program it was started with"
            )
        at = _HEADER.size + plan_size
        distributed = {p.key for p in pickle.loads(view[_HEADER.size : at]) if p.distributed}
        objects: dict[str, Any] = pickle.loads(view[at : at + rest_size])
        self._written.clear()
        self._kept.restore(self.tensors(view), distributed, objects)
        return objects
