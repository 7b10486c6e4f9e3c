"""Several batches of a loader as one: what a trainer takes for an update is a step's batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any

import torch

from holdfast._errors import UserError
from holdfast.torch._data import Feeder, Mark, Whereabouts, feeder_of
from holdfast.torch._random import Seeds
from holdfast.torch._trainers import unwrapped


class Groups:
    """A loader whose batches come in lists of `size`; the last list of a pass may be shorter."""

    def __init__(self, loader: Any, size: int, limit: int | None = None) -> None:
        """`limit`: so many batches of the loader make a pass, at most."""
        self.grouped = loader
        self._size = size
        self._limit = limit

    @property
    def dataset(self) -> Any:
        """The loader's data set, if it has one."""
        return getattr(self.grouped, "dataset", None)

    def feeder(self, seed: Seeds, at: Whereabouts) -> Feeder:
        """Return what feeds steps with the lists."""
        inner = feeder_of(unwrapped(self.grouped), seed, at)
        if not inner.shows_its_end or inner.length is None:
            raise UserError(
                f"the trainer's {type(self.grouped).__name__} has no length, and a replacement "
                "could not find its place in it: give the trainer a data set with indices"
            )
        return _Grouped(inner, self._size, self._limit)


class _Grouped(Feeder):
    def __init__(self, inner: Feeder, size: int, limit: int | None) -> None:
        self._inner = inner
        self._size = size
        self._limit = limit
        self.may_be_kept = inner.may_be_kept
        self.generators: Sequence[torch.Generator] = inner.generators

    def start(self, epoch: int, order: int, skip: int, state: Mark | None) -> Iterator[Any]:
        skipped = skip * self._size
        left = None if self._limit is None else max(self._limit - skipped, 0)
        batches = islice(self._inner.start(epoch, order, skipped, state), left)
        while group := list(islice(batches, self._size)):
            yield group

    def recall(self, order: int, seeds: tuple[int, ...]) -> None:
        self._inner.recall(order, seeds)

    def items(self) -> Any:
        return self._inner.items()

    def see_that_it_is_drawn_again(self, kept: Collection[Any]) -> None:
        self._inner.see_that_it_is_drawn_again(kept)

    @property
    def seeds(self) -> tuple[int, ...]:
        return self._inner.seeds

    @property
    def length(self) -> int | None:
        whole = self._inner.length
        if whole is None:
            return None
        return -(-min(whole, whole if self._limit is None else self._limit) // self._size)
