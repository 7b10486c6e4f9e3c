"""Keep everything that a step depends on as one image of bytes, and bring it back.

An image describes itself: a plan (which tensor lies where), the pickled rest, the tensors. The plan
may change, as when an optimizer makes its state in the first step. Only the capacity is fixed.

In front lie the tensors that are the same on all ranks, after a digest of their places. A process
that takes over a rank may get this part from any other rank.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from holdfast import _head
from holdfast._errors import UserError
from holdfast._head import Head
from holdfast._makers import Makers, makers
from holdfast.torch._kept import Kept
from holdfast.torch._names import names_of
from holdfast.torch._plan import (
    ALIGN,
    COMMON_DIGEST,
    Key,
    Place,
    Plan,
    bytes_of,
    digest_of_common,
    marks_of,
    table_in,
    view_of,
)

_MAGIC: Final = b"HFTORCH2"
_LEAST_OBJECTS: Final = 1 << 20
_GRAIN: Final = 1 << 16  # Objects take memory in such pieces.
_OUTGROWN: Final = (
    "the state has outgrown the room that was measured at the start ({} bytes); let what is kept "
    "have its full size when State is made"
)

# Is shown the tensors and the other objects that are kept, as they are written.
See = Callable[[list[tuple[Key, Tensor]], dict[str, Any]], None]


class Image:
    """Writes and reads the images of one State."""

    def __init__(self, kept: Kept, objects: dict[str, Any], common: Collection[int] = ()) -> None:
        """Measure `objects`, which the first image will hold besides the tensors.

        `common`: the ids of the parameters that are the same on all ranks.
        """
        self._kept = kept
        self._common = common
        self._names = names_of(kept)
        self._plan: Plan | None = None
        self.places: list[Place] = []  # Of the image that was written or read last.
        self.used: tuple[tuple[int, int], ...] = ()  # Ranges of the image that was written last.
        self._written: dict[int, bytes] = {}  # By address of an image: the pickled plan in it.
        # Has the kernel give memory for a range of the image, by its offset and size.
        self.take: Callable[[int, int], None] = lambda *_: None
        self._taken: dict[int, tuple[int, int]] = {}  # By address: where objects and tensors end.
        shared, size, tensors = kept.room_of_tensors(common)
        self.common = shared + ALIGN if common else 0
        self.common += -self.common % ALIGN
        room = 8 * len(self._pickle(objects, lambda _: None)) + 512 * (8 + 4 * tensors) + kept.room
        room += len(pickle.dumps(self._names))
        self._names["made_by"] = makers()  # What is where does not depend on them.
        self._start = _head.BYTES + max(_LEAST_OBJECTS, 1 << (room - 1).bit_length())
        self._start += -self._start % ALIGN
        total = self.common + self._start + size + (1 << 20)
        self.bytes = total + -total % (1 << 20)  # What is not used takes no memory: see take.

    def agree(self, first: Callable[[bytes], bytes]) -> None:
        """Use the sizes that this rank's first process measured: `first` returns those, or ours."""
        with suppress(UserError):  # No room: each successor measures for itself.
            sizes = first(f"{self.common} {self._start} {self.bytes}".encode()).split()
            self.common, self._start, self.bytes = map(int, sizes)

    def _is_common(self, key: Key, tensor: Tensor) -> bool:
        if key[0] == "state":
            tensor = self._kept.parameter_of(key[1], key[2])
        return key[0] in ("model", "state") and id(tensor) in self._common

    def _pickle(self, objects: dict[str, Any], see: Callable[[dict[str, Any]], None]) -> bytes:
        try:
            kept = self._kept.objects()
            see(kept)
            return pickle.dumps({**objects, **kept}, pickle.HIGHEST_PROTOCOL)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"something that State keeps can not be pickled: {error}") from error

    @torch.no_grad()
    def write(
        self,
        view: memoryview,
        objects: dict[str, Any],
        with_gradients: bool,
        see: See = lambda *_: None,
    ) -> None:
        """Fill an image with the state as it is now. `see` gets what is kept."""
        memory = torch.frombuffer(view, dtype=torch.uint8)
        found = list(self._kept.walk(with_gradients))
        tensors = [tensor for _, tensor in found]
        plan = self._plan
        if plan is None or plan.marks != marks_of(tensors):
            if plan is not None:
                plan.release()
            keys = [key for key, _ in found]
            shared = [self._is_common(*entry) for entry in found]
            starts = ALIGN, self.common + self._start
            plan = Plan(keys, tensors, shared, starts, self._names)
            self._plan = plan
        head = Head(plan.pickled, self._pickle(objects, partial(see, found)), self._start)
        most = max(ALIGN, self.common)
        if head.size > self._start or plan.end > len(view) or plan.common_end > most:
            raise UserError(_OUTGROWN.format(len(view)))
        address = memory.data_ptr()
        self._take(address, head.size, plan.end)
        plan.copy_to(memory)
        self.places = plan.places
        head.write(view[self.common :], _MAGIC, self._written.get(address) is plan.pickled)
        self._written[address] = plan.pickled
        if self.common:
            view[: len(plan.common)] = plan.common
        self._use(head.size, plan.end)

    def forget(self) -> None:
        """Take nothing for granted of what lies in memory: it was cleared."""
        self._written.clear()
        self._taken.clear()

    def release(self) -> None:
        """Guard nothing any more: nothing will be restored."""
        if self._plan is not None:
            self._plan.release()

    def _take(self, address: int, objects: int, end: int) -> None:
        """Take memory for an image of this size, where it is larger than those there before."""
        had_objects, had_end = self._taken.get(address, (0, 0))
        if objects <= had_objects and end <= had_end:
            return
        objects, end = max(objects, had_objects), max(end, had_end)
        start = self.common + self._start
        objects = min(objects + -objects % _GRAIN, self._start)
        self.take(0, self.common + objects)
        self.take(start, end - start)
        self._taken[address] = objects, end

    def _use(self, objects: int, end: int) -> None:
        start = self.common + self._start
        self.used = (0, self.common), (self.common, objects), (start, end - start)

    def write_again(self, old: memoryview, new: memoryview, changes: dict[str, Any]) -> None:
        """Fill an image with the contents of another one, but change some of its objects."""
        was = _head.read(old[self.common :], _MAGIC)
        places, _ = table_in(was.table)
        objects = {**pickle.loads(was.objects), **changes}
        head = was._replace(objects=pickle.dumps(objects, pickle.HIGHEST_PROTOCOL))
        if head.size > self._start:
            raise UserError(_OUTGROWN.format(len(new)))
        start = self.common + self._start
        end = max((place.offset + bytes_of(place) for place in places), default=start)
        end = max(end, start)
        self._take(torch.frombuffer(new, dtype=torch.uint8).data_ptr(), head.size, end)
        head.write(new[self.common :], _MAGIC)
        new[: self.common] = old[: self.common]
        new[start:end] = old[start:end]
        self._written.clear()
        self._use(head.size, end)

    def tensors(self, view: memoryview) -> dict[Key, Tensor]:
        """Return the tensors of an image, without copies."""
        places, _ = table_in(_head.read(view[self.common :], _MAGIC).table)
        memory = torch.frombuffer(view, dtype=torch.uint8)
        return {place.key: view_of(memory, place) for place in places}

    @torch.no_grad()
    def read(self, view: memoryview, see: Callable[[Makers], None]) -> dict[str, Any]:
        """Bring everything to what an image holds; return its objects.

        `see` is shown first what has made the image.
        """
        head = _head.read(view[self.common :], _MAGIC)
        self.places, names = table_in(head.table)
        see(names["made_by"])
        self._see_that_common_fits(view, self.places)
        distributed = {p.key for p in self.places if p.whole}
        objects: dict[str, Any] = pickle.loads(head.objects)
        self._written.clear()
        self._kept.restore(self.tensors(view), distributed, objects)
        return objects

    def _see_that_common_fits(self, view: memoryview, places: list[Place]) -> None:
        if self.common and view[:COMMON_DIGEST] != digest_of_common(places, self.common):
            raise UserError(
                "what this rank got from another one is not laid out as its own: are models and "
                "optimizers the same on all ranks?"
            )
