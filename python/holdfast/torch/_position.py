"""Where in its data a program stands: what an image holds of it, and what finds it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.torch._data import Feeder, Fetched, feeder_of


class Position:
    """Of the next batch."""

    def __init__(self) -> None:
        """Stand before everything."""
        self.epoch = 0
        self.index = 0  # Within the epoch.
        self.over = False  # Nothing follows in this epoch.
        self.see_ahead: Callable[[], None] = _nothing  # To be called before a step is done.
        self._states: dict[int, Any] = {}  # By source: what it needs besides, if anything.
        self._sources: dict[int, tuple[Any, Source]] = {}

    @property
    def has_sources(self) -> bool:
        """Whether the program has asked for batches."""
        return bool(self._sources)

    def objects(self) -> tuple[Any, ...]:
        """Return what an image has to hold of this."""
        return self.epoch, self.index, self.over, self._states.copy()

    def restore(self, objects: tuple[Any, ...]) -> None:
        """Stand where an image did, or an earlier position."""
        self.epoch, self.index, self.over, states = objects
        self._states = states.copy()

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
        over, self.over = self.over, False
        return over

    def end(self, epoch: int) -> None:
        """Go to the end of an epoch."""
        self.epoch, self.index, self.over = epoch + 1, 0, False

    def leave(self, epoch: int) -> None:
        """Have the step under way be the last of its epoch, and of those up to `epoch`."""
        self.epoch, self.over, self.see_ahead = epoch, True, _nothing

    def note(self, source: Source) -> None:
        """Stand after the batch that a source has just given."""
        state = source.feeder.state()
        if state is not None:
            self._states[source.number] = state

    def state_of(self, source: Source) -> Any:
        """Return what note() found last; None: nothing yet."""
        return self._states.get(source.number)


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
        length = self.feeder.length
        if length is not None and at.index >= length:
            return
        batches = Fetched(self.feeder.start(at.epoch, at.index, at.state_of(self)), prepare)
        for batch in batches:
            at.note(self)
            with self._looking_ahead(batches):
                yield batch

    def pass_over(self) -> None:
        """In place of batches(), where the epoch is over."""
        self.feeder.pass_over(self._position.state_of(self))

    @contextmanager
    def _looking_ahead(self, batches: Fetched) -> Iterator[None]:
        """Have the step under way see whether it is the last of its epoch.

        A source whose epochs follow each other stands, after the last batch, where it stands
        before the next epoch's first: a replacement could not tell that the one is over.
        """

        def see() -> None:
            if batches.is_over():
                self._position.over = True
                self._position.note(self)

        if not self.feeder.shows_its_end:
            self._position.see_ahead = see
        try:
            yield
        finally:
            self._position.see_ahead = _nothing


def _nothing() -> None:
    pass
