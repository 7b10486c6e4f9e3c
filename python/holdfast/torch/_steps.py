"""The loops of a program: over epochs, and over the batches of a pass, one step each."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

from holdfast._errors import UserError
from holdfast._say import say
from holdfast.torch._batch import Batch
from holdfast.torch._data import tells_its_position
from holdfast.torch._position import Source
from holdfast.torch._random import seed_of_rank_0
from holdfast.torch._trainers import shared_generator, told, unwrapped
from holdfast.torch._training import Training
from holdfast.torch._versions import Between

_Batch = TypeVar("_Batch")


class Steps(Generic[_Batch]):
    """What steps() returns: an iterable for one use, with the loader's length and attributes."""

    def __init__(self, data: Any, batches: Generator[_Batch], epochs: int) -> None:
        """Yield what `batches` yields, which makes `epochs` passes over `data`."""
        self._data = data
        self._epochs = epochs
        self._held: Iterator[_Batch] | None = batches
        self._batches = weakref.ref(batches)

    def __len__(self) -> int:
        """Return the number of batches in all passes, including those already done."""
        return len(self._data) * self._epochs

    def __getattr__(self, name: str) -> Any:
        """Return the loader's attribute: `dataset`, `sampler`, `batch_size`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._data, name)

    def __iter__(self) -> Iterator[_Batch]:
        """Begin the loop. Only the loop holds the generator, so leaving it leaves the step."""
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


def epochs(training: Training, n: int, start: int) -> Iterator[int]:
    """Yield the numbers of epochs up to `n` - 1. `start`: the first epoch of a new job."""
    if training.current_epoch is not None or training.turn:
        raise UserError("state.epochs(...) is one loop around all state.steps(...) of the program")
    progress, observer = training.progress, training.engine.observer
    epoch = progress.position.epoch if progress.n else start
    try:
        while epoch < n:
            training.current_epoch, training.turn = epoch, 0
            training.results.begin_again()
            observer.epoch_began(epoch)
            progress.seeds.derive("epoch", epoch).set()  # A successor may begin here.
            yield epoch
            observer.epoch_ended(epoch)
            epoch += 1
            # stop() may have been called after the last step. A successor asks once it has arrived.
            may_ask = epoch < n and training.arrived
            if progress.stopped or (may_ask and _wished(training, epoch - 1)):
                return
    finally:
        training.current_epoch, training.turn = None, 1


def _wished(training: Training, epoch: int) -> bool:
    training.was_stopped = bool(training.make_once((epoch, "stop"), training.versions.hear_wishes))
    return training.was_stopped


def passes(training: Training, data: Any, numbers: range, turn: int) -> Generator[Any]:
    """Yield the batches of passes `turn` of some epochs, one step each."""
    given, data = data, unwrapped(data)
    name = training.kept.name_of(data)
    if name is not None and tells_its_position(data):
        training.kept.fed.add(name)
    else:
        name = None
    source = training.sources.of(data, training.progress.seeds, name)
    if not source.feeder.shows_its_end:
        training.sources.see_that_it_is_alone(data, turn if name is None else name)
    for epoch in numbers:
        training.engine.see_that_no_step_is_open("state.steps(...)")
        yield from _one_pass(training, source, given, epoch, turn)
        # A successor that skips this pass has to go on with the same seeds after it.
        training.progress.seeds.derive("pass", epoch, turn).set()
        if training.stopped and training.arrived:  # On its way, a successor goes on.
            return


def _one_pass(
    training: Training, source: Source, given: Any, epoch: int, turn: int
) -> Iterator[Any]:
    at = training.progress.position
    if training.n and (epoch, turn) < (at.epoch, at.turn):
        source.pass_over(turn)
        return
    is_here = training.n > 0 and (epoch, turn) == (at.epoch, at.turn)
    if not training.arrived:
        if not is_here:
            raise UserError(
                f"after this restart the program begins with epoch {epoch}, but epoch {at.epoch} "
                "is under way; begin with `for epoch in state.epochs(n):`, which knows it"
            )
        training.arrive()
    if (shared := shared_generator(given)) is not None:
        seed = training.make_once((epoch, "order", turn), lambda: seed_of_rank_0(shared))
        shared.manual_seed(seed)
    if is_here:
        source.arrive()
        if training.engine.seat.place.rank == 0 and (change := source.change_of_size()):
            training.engine.seat.say_once(change)
    if at.begin(epoch, turn) or (is_here and training.stopped):
        source.pass_over(turn)
        return

    def prepare(before: int) -> None:
        training.progress.seeds.derive("fetch", training.n + before).set()

    # The order may be drawn from a generator that State keeps, and from which the body draws too.
    kept = [g for g in source.feeder.generators if at.index and training.kept.name_of(g)]
    brought = [(generator, generator.get_state()) for generator in kept]
    between: Between | None = Between(training.kept, training.versions.tensors())
    for batch in told(given, epoch, source.batches(prepare), at):
        if between is not None:
            for generator, there in brought:
                generator.set_state(there)
            between.note_order(source.feeder.generators)
        yield from _one_step(training, source, batch, between)
        between = None
        if training.stopped:
            break
    training.versions.compare(at_end=True)


def _one_step(
    training: Training, source: Source, batch: Any, between: Between | None
) -> Iterator[Any]:
    """Yield the batch of one step, again if it was void, until the step is done."""
    at = training.progress.position
    kept = Batch(batch, by_contents=not training.seen)
    del batch
    at.index += 1
    after = at.objects()
    while True:
        training.begin()
        at.restore(after)  # begin() may have restored the position before the step.
        training.drawn = 1
        try:
            yield training.sampled.batch(kept.give())
        except GeneratorExit:
            _leave(training, source, between)
            raise
        finally:
            training.drawn = 0
        kept.see_that_it_is_unchanged(training.n + 1)
        if training.finish():
            return
        if between is not None:
            between.put_back(training.kept)


def _leave(training: Training, source: Source, between: Between | None) -> None:
    """Leave a step undone: nobody asked for the next batch."""
    if not training.engine.in_step or sys.is_finalizing():
        return  # The interpreter is ending and closes generators.
    training.engine.drain()
    n = training.n + 1
    if training.has_updated:
        training.left = n
    training.leave(between)
    source.feeder.lose()
    say(
        f"the loop was left within step {n}, which is not done: what it changed is taken back "
        "(state.stop() ends a loop after its step)"
    )
