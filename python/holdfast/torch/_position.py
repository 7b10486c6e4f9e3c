"""Where in its data a program stands: what an image holds of it, and what finds it again."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from types import FrameType, ModuleType
from typing import Any, Final, NamedTuple

from holdfast._errors import UserError
from holdfast.torch._data import (
    Feeder,
    Fetched,
    Mark,
    Whereabouts,
    feeder_of,
    tells_its_position,
)
from holdfast.torch._frames import callers, variables_of
from holdfast.torch._random import derive

_NO_OBJECTS: Final = (type, ModuleType)
_DEPTH: Final = 4  # Functions from the call outwards whose variables tell sources apart.


class _Past(NamedTuple):
    """What is known of a source that has a position of its own."""

    mark: Mark
    epoch: int  # The last that it fed.
    key: int  # How the program named it then.


class _Entry:
    """One of the program's sources, as long as the program has it."""

    def __init__(self) -> None:
        self.number: int | None = None  # None: it has not fed a step, or is not known again yet.
        self.at = Whereabouts()
        self.feeder: Feeder | None = None  # Where that does not hold the source itself.
        self.source: Callable[[], Any] = _nothing  # A weak reference, if it can be had.


class Position:
    """Of the next batch."""

    def __init__(self) -> None:
        """Stand before everything."""
        self.epoch = 0
        self.index = 0  # Within the epoch.
        self.over = False  # Nothing follows in this epoch.
        self.see_ahead: Callable[[], None] = _nothing  # To be called before a step is done.
        self.length: int | None = None  # Of the epoch, in batches.
        self.own = 0  # Steps of loops of the program's own since an epoch ended.
        self.seeds: tuple[int, ...] = ()  # The program's, for what its epoch's order is drawn from.
        self._ended: set[int] = set()  # Epochs, made or passed over in this process.
        self._leave: Callable[[], None] = _nothing  # To be called where the step is the last.
        self._past: dict[int, _Past] = {}  # By number of the source.
        self._entries: dict[int, _Entry] = {}  # By id of the source.
        self._count = 0  # Numbers that were given, in all processes.
        self._unclaimed: set[int] = set()  # Those of them that are a predecessor's.
        self._has_claimed = False
        self._asked = False

    @property
    def has_sources(self) -> bool:
        """Whether the program has asked for batches."""
        return self._asked

    @property
    def is_last(self) -> bool:
        """Whether the step under way is the last of its epoch; once it has seen ahead."""
        return self.over or self.length == self.index > 0

    def objects(self) -> tuple[Any, ...]:
        """Return what an image has to hold of this."""
        # What the program has dropped feeds no more; it may be one of many, as one a pass.
        there = {entry.number for entry in list(self._entries.values())} | self._unclaimed
        self._past = {number: past for number, past in self._past.items() if number in there}
        past = self._past.copy()
        return self.epoch, self.index, self.over, self.own, self.seeds, past, self._count

    def restore(self, objects: tuple[Any, ...]) -> None:
        """Stand where an image did, or an earlier position."""
        self.epoch, self.index, self.over, self.own, self.seeds, past, count = objects
        self._past, self._count = past.copy(), max(self._count, count)
        if not self._has_claimed:
            self._unclaimed = set(past)

    def source_of(self, data: Any, seed: int, key: int = 0) -> Source:
        """Return who feeds what a user gave to steps(); `key` as of key_of()."""
        self._asked = True
        entry = self._entries.get(id(data))
        if entry is None:
            entry = self._enter(data)
        feeder = entry.feeder or feeder_of(data, seed, entry.at)
        if feeder.may_be_kept:
            entry.feeder = feeder
        return Source(feeder, entry, key, self)

    def _enter(self, data: Any) -> _Entry:
        entry = _Entry()
        here, place = weakref.ref(self), id(data)

        def forget(_: Any) -> None:
            position = here()
            if position is not None and position._entries.get(place) is entry:
                del position._entries[place]

        try:
            entry.source = weakref.ref(data, forget)
        except TypeError:  # A list has no weak references, and no position of its own either.
            if not tells_its_position(data):
                return entry
            entry.source = lambda: data
        self._entries[place] = entry
        return entry

    def _claim(self, source: Source, epoch: int) -> None:
        """Give a source that feeds pass `epoch` its number: its predecessor's, or a new one.

        Not that of the order in which sources are first used: a loop that begins with the pass
        under way does not use those of the passes before.
        """
        if source.entry.number is not None or source.feeder.shows_its_end:
            return
        past = {n: self._past[n] for n in self._unclaimed if n in self._past}
        found = [n for n in past if past[n].epoch == epoch]
        if not found:
            if epoch < self.epoch:
                return  # It is known by its last pass, which comes, or has fed none.
            found = [n for n in past if past[n].key == source.key]
        if len(found) > 1:
            raise UserError(
                f"after this restart State can not tell which source of data feeds pass {epoch}: "
                f"{len(found)} that fed passes before are not told apart by a variable of their "
                "own; give each one, or let the loop begin with pass 0, whatever state.epoch is: "
                "passes that are done yield nothing"
            )
        if not found:
            found = [self._count]
            self._count += 1
        source.entry.number = found[0]
        self._unclaimed.discard(found[0])
        self._has_claimed = True

    def begin(self, epoch: int, source: Source) -> bool:
        """Go to an epoch that `source` feeds; return whether it is over already."""
        self._claim(source, epoch)
        if epoch != self.epoch:
            self.epoch, self.index, self.over = epoch, 0, False
        over, self.over, self.own = self.over, False, 0
        return over

    def see_that_it_is_new(self, epoch: int) -> None:
        """Raise if this process has come to the end of the epoch before."""
        if epoch in self._ended:
            raise UserError(
                f"pass {epoch} over the data is done; give each pass a number of its own: with two "
                "loops in turns, state.steps(first, epoch=2 * epoch) and "
                "state.steps(second, epoch=2 * epoch + 1)"
            )

    def pass_over(self, epoch: int, source: Source) -> None:
        """Take note that an epoch was done before this process was started."""
        self._claim(source, epoch)
        self._ended.add(epoch)

    def end(self, epoch: int) -> None:
        """Go to the end of an epoch."""
        self._ended.add(epoch)
        self.epoch, self.index, self.over = epoch + 1, 0, False

    def leave(self, epoch: int) -> None:
        """Have the step under way be the last of its epoch, and of those up to `epoch`."""
        self.epoch, self.over, self.see_ahead = epoch, True, _nothing
        self._leave()

    def mark_of(self, source: Source) -> Mark | None:
        """Return where a source has come to; None: it has not begun."""
        past = self._past.get(source.number)
        return past.mark if past else None

    def set_mark(self, source: Source, mark: Mark) -> None:
        """Note where a source has come to."""
        self._past[source.number] = _Past(mark, self.epoch, source.key)

    @contextmanager
    def watched(self, see: Callable[[], None], leave: Callable[[], None]) -> Iterator[None]:
        """Call `see` before the step under way is done, `leave` where its loop is left."""
        self.see_ahead, self._leave = see, leave
        try:
            yield
        finally:
            self.see_ahead = self._leave = _nothing


class Source:
    """What feeds a program, of one or more."""

    def __init__(self, feeder: Feeder, entry: _Entry, key: int, position: Position) -> None:
        """Be the program's source of an `entry`, as long as a call of steps() uses it."""
        self.feeder = feeder
        self.entry = entry
        self.key = key
        self._position = position

    @property
    def number(self) -> int:
        """Return what the images of all processes call it; -1: nothing, they hold nothing of it."""
        return -1 if self.entry.number is None else self.entry.number

    def batches(self, prepare: Callable[[int], None]) -> Iterator[Any]:
        """Yield what is left of the epoch; `prepare` as in Fetched."""
        at = self._position
        at.length = length = self.feeder.length
        self._recall_seeds()
        if length is not None and at.index >= length:
            return
        at.seeds = self.feeder.seeds
        start = self.feeder.start(at.epoch, at.index, at.mark_of(self))
        batches = Fetched(start, prepare)
        if self.feeder.shows_its_end:
            yield from batches
            return
        before = at.mark_of(self) or Mark(None)
        at.set_mark(self, before.then(to_end=False))  # If it has come to its end before.
        for batch in batches:
            mark = Mark(self.feeder.state())
            at.set_mark(self, mark)
            with self._looking_ahead(batches, before):
                yield batch
            before = mark

    def pass_over(self) -> None:
        """In place of batches(), where the epoch is over."""
        self._recall_seeds()
        self.feeder.take_up(self._position.mark_of(self))

    def _recall_seeds(self) -> None:
        """In an epoch that was begun, also where nothing of it is left: the next may go by them."""
        if self._position.index:
            self.feeder.recall(self._position.epoch, self._position.seeds)

    def _looking_ahead(self, batches: Fetched, before: Mark) -> AbstractContextManager[None]:
        """Have the step under way see whether it is the last of its epoch.

        Where a source has come to with its last batch does not tell: it may be where the next epoch
        begins. `before`: where it was before the step's batch.
        """
        at = self._position

        def see() -> None:
            if batches.is_over():
                at.over = True
                at.set_mark(self, before.then(to_end=True))

        def leave() -> None:
            at.set_mark(self, before.then(to_end=False))
            if batches.is_ahead:  # It was void before, and had looked ahead.
                self.feeder.lose()

        return at.watched(see, leave)


def key_of(data: Any, frame: FrameType | None) -> int:
    """Return what tells a source from the program's others in another process: its variables.

    `frame` is the program's that calls.
    """
    if not tells_its_position(data):
        return 0
    names: set[str] = set()
    for f in islice(callers(frame), _DEPTH):
        own = variables_of(f)
        for name, value in {**f.f_globals, **own}.items():
            if value is data:
                names.add(name)
                continue
            parts = getattr(value, "__dict__", None)
            if type(parts) is dict and name in own and not isinstance(value, _NO_OBJECTS):
                names.update(f"{name}.{n}" for n, part in parts.items() if part is data)
    return derive(type(data).__qualname__, *sorted(names))


def _nothing() -> None:
    pass
