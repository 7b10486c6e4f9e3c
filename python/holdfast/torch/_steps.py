"""The loops that a program makes its steps in: over epochs, and over the batches of one."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast._errors import UserError
from holdfast.torch._batch import Batch
from holdfast.torch._data import tells_its_position
from holdfast.torch._engine import say
from holdfast.torch._random import seed_of_rank_0
from holdfast.torch._trainers import shared_generator, told, unwrapped
from holdfast.torch._versions import Between

if TYPE_CHECKING:
    from holdfast.torch._position import Source
    from holdfast.torch._state import State

_Batch = TypeVar("_Batch")


class Steps(Generic[_Batch]):
    """The steps of some passes, to be gone through once; has the loader's length and attributes."""

    def __init__(self, data: Any, batches: Generator[_Batch], epochs: int) -> None:
        """Yield the same as `batches`, which makes `epochs` passes over `data`."""
        self._data = data
        self._epochs = epochs
        self._held: Iterator[_Batch] | None = batches
        self._batches = weakref.ref(batches)

    def __len__(self) -> int:
        """Return the number of batches in all its passes, including those already done."""
        return len(self._data) * self._epochs

    def __getattr__(self, name: str) -> Any:
        """Return the loader's attribute: `dataset`, `sampler`, `batch_size`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._data, name)

    def __iter__(self) -> Iterator[_Batch]:
        """Begin, or go on. Only the loop holds the generator: leaving it leaves the step."""
        batches = self._batches()
        if batches is None:
            raise UserError(
                "this state.steps(...) has been gone through, or was left by `break`; call "
                "state.steps(loader) again for each pass over the data"
            )
        self._held = None
        return batches

    def __next__(self) -> _Batch:
        """Return the batch of the next step."""
        self._held = iter(self)
        return next(self._held)


def epochs(state: State, n: int, start: int) -> Iterator[int]:
    """Yield the numbers of epochs before `n`; `start`: where a job begins."""
    if state.current_epoch is not None or state.turn:
        raise UserError("state.epochs(...) is one loop around all state.steps(...) of the program")
    progress, observer = state.progress, state.engine.observer
    epoch = progress.position.epoch if progress.n else start
    try:
        while epoch < n:
            state.current_epoch, state.turn = epoch, 0
            state.results.begin_again()
            observer.epoch_began(epoch)
            progress.seeds.derive("epoch", epoch).set()  # A replacement begins here as well.
            yield epoch
            observer.epoch_ended(epoch)
            epoch += 1
            # A wish to stop that came after the steps is known once a step was made here.
            if progress.stopped or (epoch < n and state.arrived and _wished(state, epoch - 1)):
                return
    finally:
        state.current_epoch, state.turn = None, 1


def _wished(state: State, epoch: int) -> bool:
    state.was_stopped = bool(state.make_once((epoch, "stop"), state.versions.hear_wishes))
    return state.was_stopped


def passes(state: State, data: Any, numbers: range, turn: int) -> Generator[Any]:
    """Yield the batches of passes `turn` of some epochs, one step each."""
    given, data = data, unwrapped(data)
    name = state.kept.name_of(data)
    if name is not None and tells_its_position(data):
        state.kept.fed.add(name)
    else:
        name = None
    source = state.sources.of(data, state.progress.seeds, name)
    if not source.feeder.shows_its_end:
        state.sources.see_that_it_is_alone(data, turn if name is None else name)
    for epoch in numbers:
        state.engine.see_that_no_step_is_open("state.steps(...)")
        yield from _one_pass(state, source, given, epoch, turn)
        state.progress.seeds.derive("pass", epoch, turn).set()  # As after one that it passes over.
        if state.stopped and state.arrived:  # On its way a replacement passes earlier ones.
            return


def _one_pass(state: State, source: Source, given: Any, epoch: int, turn: int) -> Iterator[Any]:
    at = state.progress.position
    if state.n and (epoch, turn) < (at.epoch, at.turn):
        source.pass_over(turn)
        return
    is_here = state.n > 0 and (epoch, turn) == (at.epoch, at.turn)
    if not state.arrived:
        if not is_here:
            raise UserError(
                f"after this restart the program begins with epoch {epoch}, but epoch {at.epoch} "
                "is under way; begin with `for epoch in state.epochs(n):`, which knows it"
            )
        state.arrive()
    if (shared := shared_generator(given)) is not None:
        seed = state.make_once((epoch, "order", turn), lambda: seed_of_rank_0(shared))
        shared.manual_seed(seed)
    if is_here:
        source.arrive()
    if at.begin(epoch, turn) or (is_here and state.stopped):
        source.pass_over(turn)
        return

    def prepare(before: int) -> None:
        state.progress.seeds.derive("fetch", state.n + before).set()

    # A body may draw from a generator that State keeps and that the order is drawn from as well.
    kept = [g for g in source.feeder.generators if at.index and state.kept.name_of(g)]
    brought = [(generator, generator.get_state()) for generator in kept]
    between: Between | None = Between(state.kept, state.versions.tensors())
    for batch in told(given, epoch, source.batches(prepare), at):
        if between is not None:
            for generator, there in brought:
                generator.set_state(there)
            between.note_order(source.feeder.generators)
        yield from _one_step(state, source, batch, between)
        between = None
        if state.stopped:
            return


def _one_step(state: State, source: Source, batch: Any, between: Between | None) -> Iterator[Any]:
    """Yield the batch of one step, again if it was void, until the step is done."""
    at = state.progress.position
    kept = Batch(batch, by_contents=not state.seen)
    del batch
    at.index += 1
    after = at.objects()
    while True:
        state.begin()
        at.restore(after)  # begin() may have gone back.
        state.drawn = 1
        try:
            yield kept.give()
        except GeneratorExit:
            _leave(state, source, between)
            raise
        finally:
            state.drawn = 0
        kept.see_that_it_is_unchanged(state.n + 1)
        if state.finish():
            return
        if between is not None:
            between.put_back(state.kept)


def _leave(state: State, source: Source, between: Between | None) -> None:
    """Leave a step undone: nobody asked for the next batch."""
    if not state.engine.in_step or sys.is_finalizing():
        return  # The program has ended, and its generators are closed.
    state.engine.drain()
    n = state.n + 1
    if state.has_updated:
        state.left = n
    state.leave(between)
    source.feeder.lose()
    say(
        f"the loop was left within step {n}, which is not done: what it changed is taken back "
        "(state.stop() ends a loop after its step)"
    )
