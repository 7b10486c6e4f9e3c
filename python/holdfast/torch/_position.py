"""How far a job has come, and where it is in its data. Images hold both."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from holdfast._errors import UserError
from holdfast.torch._data import (
    Feeder,
    Fetched,
    Mark,
    Whereabouts,
    feeder_of,
    length_of,
    tells_its_position,
)
from holdfast.torch._plan import Key
from holdfast.torch._random import Seeds, get_states, set_states

# Names a source with a position of its own: its pass within the epoch, or its name in State.
Name = int | str


class Position:
    """The place of the next batch: the epoch, the pass within it, the batch within that."""

    def __init__(self) -> None:
        """Begin before the first batch."""
        self.epoch = 0
        self.turn = 0  # The number of the pass: which of the epoch's calls of steps() makes it.
        self.index = 0  # Batches of the pass that are done.
        self.over = False  # The pass has no more batches.
        self.own = 0  # Steps in loops of the program's own.
        self.seeds: tuple[int, ...] = ()  # The program's, from which the pass draws its order.
        self.marks: dict[Name, Mark] = {}  # Of sources with a position of their own.
        self.size: int | None = None  # Of the data that the pass reads, if known.
        self.length: int | None = None  # Batches of the pass, if known.
        self.see_ahead: Callable[[], None] = _nothing  # Called before a step is done.

    @property
    def order(self) -> int:
        """The number from which the pass under way draws its order; for turn 0, the epoch."""
        return self.epoch | self.turn << 32

    def objects(self) -> tuple[Any, ...]:
        """Return what an image has to hold of the position."""
        marks = self.marks.copy()
        at = self.epoch, self.turn, self.index, self.over, self.own
        return *at, self.seeds, marks, self.size

    def restore(self, objects: tuple[Any, ...]) -> None:
        """Go to where an image, or an earlier objects(), says."""
        self.epoch, self.turn, self.index, self.over, self.own, *rest = objects
        self.seeds, marks, self.size = rest
        self.marks = marks.copy()

    def begin(self, epoch: int, turn: int) -> bool:
        """Go to a pass. Return whether this pass is over already."""
        if (epoch, turn) != (self.epoch, self.turn):
            self.epoch, self.turn, self.index, self.over = epoch, turn, 0, False
        over, self.over = self.over, False
        return over

    @contextmanager
    def watched(self, see: Callable[[], None]) -> Iterator[None]:
        """Have `see` called before the step under way is done."""
        self.see_ahead = see
        try:
            yield
        finally:
            self.see_ahead = _nothing


class Progress:
    """Steps, the place in the data, results of state.once(), the wish to stop."""

    def __init__(self, seeds: Seeds) -> None:
        """Stand before the first step."""
        self.n = 0  # Steps that are done; during a commit, with the one under way.
        self.position = Position()
        self.seeds = seeds  # Those of the rank's first process.
        self.stopped = False  # In a step that is done, some rank wished to stop.
        self.wish = False  # This rank wishes to stop.
        self.results: dict[Key, bytes] = {}  # Of state.once(), pickled; see Results.

    def objects(self) -> Any:
        """Return what an image has to hold of the progress, except results."""
        return self.n, self.position.objects(), self.seeds, self.stopped

    def restore(self, objects: Any, results: dict[Key, bytes]) -> None:
        """Go on from an image."""
        self.n, position, self.seeds, self.stopped = objects
        self.position.restore(position)
        self.results = dict(results)
        self.wish = False


class Sources:
    """The sources that the program has given to steps() in this process."""

    def __init__(self, position: Position, kept: Mapping[str, Any] | None = None) -> None:
        """Begin without sources. `kept`: objects that State keeps, whose generators may go on."""
        self._position = position
        self._kept = kept or {}
        self._entries: dict[int, _Entry] = {}  # By id of the source.

    def of(self, data: Any, seeds: Seeds, name: str | None) -> Source:
        """Return the Source of a pass over the user's data. `name`: under which State keeps it."""
        entry = self._entries.get(id(data))
        if entry is None:
            entry = self._enter(data)
        make = getattr(data, "feeder", None)  # Of holdfast.torch._groups.
        feeder = entry.feeder or (make or partial(feeder_of, data))(seeds, entry.at)
        if feeder.may_be_kept:
            entry.feeder = feeder
        if not entry.seen:
            entry.seen = True
            feeder.see_that_it_is_drawn_again(tuple(self._kept.values()))
            if (items := feeder.items()) is not None:
                _see_that_items_can_be_given_again(items, seeds.derive("item"))
        return Source(feeder, name, self._position, getattr(data, "dataset", None))

    def _enter(self, data: Any) -> _Entry:
        entry = _Entry()
        here, place = weakref.ref(self), id(data)

        def forget(_: Any) -> None:
            sources = here()
            if sources is not None and sources._entries.get(place) is entry:
                del sources._entries[place]

        try:
            entry.source = weakref.ref(data, forget)
        except TypeError:  # A list has no weak references, but no position to be kept either.
            if not tells_its_position(data):
                return entry
            entry.source = lambda: data
        self._entries[place] = entry
        return entry

    def see_that_it_is_alone(self, data: Any, key: Name) -> None:
        """Raise if another source that tells its position has fed the same pass of an epoch."""
        for entry in list(self._entries.values()):
            if entry.key == key and entry.source() not in (None, data):
                raise UserError(
                    "two sources of data that tell their positions feed steps() in turns; give "
                    "both to State by names, State(..., train=train, tuning=tuning), so that a "
                    "replacement knows which is which"
                )
        if id(data) in self._entries:
            self._entries[id(data)].key = key


class _Entry:
    """What is known of one source, as long as the program holds the source."""

    def __init__(self) -> None:
        self.at = Whereabouts()
        self.feeder: Feeder | None = None  # Only a feeder that may be kept.
        self.source: Callable[[], Any] = _nothing  # A weak reference, if possible.
        self.key: Name | None = None  # Its pass or name, if it has a position of its own.
        self.seen = False  # Whether its data is the same each time was checked.


class Source:
    """The batches of one pass over a source."""

    def __init__(
        self, feeder: Feeder, name: str | None, position: Position, dataset: Any = None
    ) -> None:
        """`name`: the name under which State keeps the source, if it does."""
        self.feeder = feeder
        self._dataset = dataset
        self._name = name
        self._position = position

    @property
    def key(self) -> Name:
        """The key under which `marks` holds the source's position, the same in all processes."""
        return self._position.turn if self._name is None else self._name

    def batches(self, prepare: Callable[[int], None]) -> Iterator[Any]:
        """Yield the rest of the pass. `prepare` is as in Fetched."""
        at = self._position
        at.length = length = self.feeder.length
        if length is not None and at.index >= length:
            return
        at.seeds, at.size = self.feeder.seeds, self._size()
        before = at.marks.get(self.key)
        start = self.feeder.start(at.epoch, at.order, at.index, before)
        batches = Fetched(start, prepare)
        if self.feeder.shows_its_end:
            yield from batches
            return
        before = before or Mark(None)
        at.marks[self.key] = before.then(to_end=False)  # Holds if there is no batch left.
        for batch in batches:
            mark = Mark(self.feeder.state())
            at.marks[self.key] = mark
            with self._looking_ahead(batches, before):
                yield batch
            before = mark

    def arrive(self) -> None:
        """Use the seeds with which a predecessor began this pass."""
        self.feeder.recall(self._position.order, self._position.seeds)

    def _size(self) -> int | None:
        """Return how many items the data set has, or batches where there is none, if known."""
        return self.feeder.length if self._dataset is None else length_of(self._dataset)

    def change_of_size(self) -> str:
        """Return a sentence if the data is not as long as when a predecessor began this pass."""
        was, now = self._position.size, self._size()
        if was is None or now is None or now == was:
            return ""
        return (
            f"the data has {now:,} items and had {was:,} when this epoch began: the rest of it is "
            "not what it would have been"
        )

    def pass_over(self, turn: int) -> None:
        """Do what replaces batches() if pass `turn` of the epoch is over already."""
        self.feeder.take_up(self._position.marks.get(self._name if self._name else turn))

    def _looking_ahead(self, batches: Fetched, before: Mark) -> AbstractContextManager[None]:
        """Have the step under way see whether it is the last of its pass.

        The source's state after its last batch does not tell that the pass is over: it may be that
        of the next pass's beginning. `before`: the source's mark before the step's batch.
        """
        at = self._position

        def see() -> None:
            if batches.is_over():
                at.over = True
                at.marks[self.key] = before.then(to_end=True)

        return at.watched(see)


def _see_that_items_can_be_given_again(dataset: Any, seeds: Seeds) -> None:
    """Ask for the first item twice under equal seeds. UserError: it was not the same.

    A data set that draws from its own generator, such as `numpy.random.default_rng()`, gives
    something else each time. A replay, or a successor, would train on other data.
    """
    before = get_states()
    try:
        if not len(dataset):
            return
        twice = []
        for _ in range(2):
            seeds.set()
            twice.append(dataset[0])
    except Exception:
        return  # It has no index 0, or needs to be prepared by a worker process.
    finally:
        set_states(before)
    if not _are_same(twice[0], twice[1], 0):
        raise UserError(
            f"item 0 of the data set {type(dataset).__name__} is not the same when it is asked "
            "for twice under equal seeds, so a fault would change the data. It counts, or draws "
            "from a generator that nobody sets: draw from torch, random or numpy.random, which are "
            "set for each item, or derive its generator from the index: default_rng(index)"
        )


def _are_same(one: Any, other: Any, depth: int) -> bool:
    if type(one) is not type(other) or depth > 8:
        return type(one) is type(other)
    if isinstance(one, torch.Tensor):
        if one.layout is not torch.strided or one.shape != other.shape or one.dtype != other.dtype:
            return one.layout is not torch.strided
        return torch.equal(one, other) or bool(((one == other) | (one != one)).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _are_same(part, other[key], depth + 1) for key, part in one.items()
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(
            _are_same(a, b, depth + 1) for a, b in zip(one, other)
        )
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(one, (numpy.ndarray, numpy.generic)):
        return one.tobytes() == other.tobytes() if not one.dtype.hasobject else True
    if isinstance(one, (bool, int, float, complex, str, bytes)):
        return one == other or one != one
    return True  # Of other types it is not known when two are equal.


def _nothing() -> None:
    pass
