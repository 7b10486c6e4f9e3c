"""Where in its data a program stands: what an image holds of it, and what finds it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from holdfast._errors import UserError
from holdfast.torch._data import Feeder, Fetched, Mark, feeder_of


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
        self._ended: set[int] = set()  # Epochs, made or passed over in this process.
        self._leave: Callable[[], None] = _nothing  # To be called where the step is the last.
        self._marks: dict[int, Mark] = {}  # By source: what it needs besides, if anything.
        self._sources: dict[int, tuple[Any, Source]] = {}

    @property
    def has_sources(self) -> bool:
        """Whether the program has asked for batches."""
        return bool(self._sources)

    @property
    def is_last(self) -> bool:
        """Whether the step under way is the last of its epoch; once it has seen ahead."""
        return self.over or self.length == self.index > 0

    def objects(self) -> tuple[Any, ...]:
        """Return what an image has to hold of this."""
        return self.epoch, self.index, self.over, self.own, self._marks.copy()

    def restore(self, objects: tuple[Any, ...]) -> None:
        """Stand where an image did, or an earlier position."""
        self.epoch, self.index, self.over, self.own, marks = objects
        self._marks = marks.copy()

    def source_of(self, data: Any, seed: int) -> Source:
        """Return who feeds what a user gave to steps()."""
        if id(data) not in self._sources:  # `data` is held, so that nothing else gets its id.
            source = Source(feeder_of(data, seed), len(self._sources), self)
            self._sources[id(data)] = (data, source)
        return self._sources[id(data)][1]

    def begin(self, epoch: int) -> bool:
        """Go to an epoch; return whether it is over already."""
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

    def pass_over(self, epoch: int) -> None:
        """Take note that an epoch was done before this process was started."""
        self._ended.add(epoch)

    def end(self, epoch: int) -> None:
        """Go to the end of an epoch."""
        self._ended.add(epoch)
        self.epoch, self.index, self.over = epoch + 1, 0, False

    def leave(self, epoch: int) -> None:
        """Have the step under way be the last of its epoch, and of those up to `epoch`."""
        self._leave()
        self.epoch, self.over, self.see_ahead = epoch, True, _nothing

    def mark_of(self, source: Source) -> Mark | None:
        """Return where a source has come to; None: it has not begun."""
        return self._marks.get(source.number)

    def set_mark(self, source: Source, mark: Mark) -> None:
        """Note where a source has come to."""
        self._marks[source.number] = mark

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

    def __init__(self, feeder: Feeder, number: int, position: Position) -> None:
        """Be that of a `number`, in the order in which the program first uses them."""
        self.feeder = feeder
        self.number = number
        self._position = position

    def batches(self, prepare: Callable[[int], None]) -> Iterator[Any]:
        """Yield what is left of the epoch; `prepare` as in Fetched."""
        at = self._position
        at.length = length = self.feeder.length
        if length is not None and at.index >= length:
            return
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
        self.feeder.take_up(self._position.mark_of(self))

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


def _nothing() -> None:
    pass
