"""State: lets a program's own training loop go on after a fault, as Model.train does.

A step is a function of what State holds and of its batch. Anything that is not in State is lost
with the process. A step ends when the loop asks for the next batch. If a fault makes a step void,
it is made again with the same batch, from the end of the step before it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from holdfast._advice import advise, say_or_refuse
from holdfast._errors import UserError
from holdfast._losses import Act, Losses
from holdfast._say import say
from holdfast._vars import LIMIT, Values, Vars
from holdfast._versions import tell
from holdfast.mindspore import _callbacks, _data, _engine, _random, _rehearsal, _trainer
from holdfast.mindspore._batches import batches
from holdfast.mindspore._cells import Cells, hidden_parameters
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._imported import COMPILERS, either
from holdfast.mindspore._steps import Steps

_WISH: Final = struct.Struct("?")
_MOST_RESULT: Final = 256 << 10  # Bytes of a result of once().


class _At(NamedTuple):
    """The position of the training, kept with every step."""

    n: int = 0  # Steps that are done.
    epoch: int = 0
    batch: int = 0  # Batches of this epoch that are done.
    begun: bool = False  # epochs() was called.
    stopping: bool = False  # No step follows in this epoch.
    ended: bool = False  # No epoch follows.
    results: dict[tuple[str, int], Any] = {}  # noqa: RUF012 - never changed. Those of once().


class State:
    """Keeps what the steps of a program's own loop depend on. There is one State in a job."""

    def __init__(self, network: Any, optimizer: Any, *, strict: bool = False, **named: Any) -> None:
        """Keep a network, its optimizer, and all things that are given by name.

        At the first start, parameters become equal to rank 0's. In a successor, everything becomes
        what it was after the last step. `named`: cells, parameters, or objects with `state_dict`
        and `load_state_dict`. Of any other object, parameters and plain attributes are kept.

        `strict`: where the loop's source seems to break the rule (a step depends on State and its
        batch alone), raise an error instead of a remark.
        """
        self._engine, self._strict = _started(), strict
        if self._engine.rehearsing:
            _rehearsal.stop_here(self._engine)  # Its steps are not made on scratch state.
        things, self._named = _sorted_out(network, optimizer, named)
        parameters = _parameters(things)
        self._at = _At()
        self._place = ""  # "": before epochs(), or without it; "epoch <n>"; "after" its end.
        self._in_step = self._replaying = self._wish = False
        self._used = False  # steps() was called: in this epoch, or without epochs.
        self._values = Values()
        self._losses = Losses()
        self._calls: dict[str, int] = {}  # Calls of once(), by place.
        self._base = _random.states()
        self._seed = _random.DataSeed()
        self._cells = Cells(network, self._engine.say_once)
        self._before: dict[str, Any] = {}  # What is kept in Python, before the step.
        self._last = self._held()
        self._steps = Steps(self._engine, parameters, self._objects(), [], LIMIT)
        _trainer.warn_of_dropout(self._engine, network)
        self._take(self._steps.objects)

    # ---- What a program asks ---------------------------------------------------------------------

    @property
    def n(self) -> int:
        """The number of steps that are done."""
        return self._at.n

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 0."""
        return self._at.epoch

    @property
    def batch(self) -> int:
        """The number of batches of this epoch that are done."""
        return self._at.batch

    @property
    def replaying(self) -> bool:
        """Whether the step under way is the replay of a void one."""
        return self._replaying

    @property
    def stopped(self) -> bool:
        """Whether any rank has called stop(), in a step or an epoch that is done."""
        return self._at.stopping or self._at.ended

    def vars(self, **values: Any) -> Vars:
        """Keep plain values with every step; return the object that holds them as attributes.

        The values given here hold before the first step; a successor gets those after the last
        step. UserError: a value is not plain, or all together are too large.
        """
        return self._values.name(values)

    def check(self, loss: Any, at_most: float = math.inf, then: str = "stop") -> None:
        """Let the step under way count only if no rank's loss is bad; call it once it is known.

        Bad is what is NaN, infinite, or greater than `at_most`. At the step's end all is then as
        before it, on all ranks, and the step is made again. If a loss is bad again, the job ends
        with a sentence that names step, rank and loss (`then="stop"`), or the batch is left out
        (`then="skip"`): nothing of the step stays, and `n` grows by one. UserError: not in a step.
        """
        if not self._in_step:
            raise UserError("state.check(loss) belongs into a step")
        self._losses.check(loss, at_most, then)

    def stop(self) -> None:
        """End the loops on all ranks, after the step or epoch under way."""
        self._wish = True

    def once(self, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Call a function on all ranks, once, and return its result.

        The result is kept, so a successor gets it without a call. If a fault comes meanwhile, the
        function is called again. In a step, once() is a plain call. UserError: the result does not
        consist of numbers, texts, lists, dicts, arrays and tensors, or is too large.
        """
        if self._in_step:
            return function(*given, **named)
        name = getattr(function, "__name__", "function")
        key = self._next_call(name)
        if key in self._at.results:
            return pickle.loads(self._at.results[key])
        before, tries, at = self._held(), itertools.count(), self._at

        def make() -> Any:
            if next(tries):  # The first try was void.
                self._put(before)
            _random.seed_from(self._base, f"once {key}")
            return function(*given, **named)

        def describe(result: Any) -> dict[str, Any]:
            try:
                packed = _data.dumps(result)
            except _data.NoDataError as error:
                raise UserError(
                    f"what state.once({name}) has made can not be kept: {error}; return numbers, "
                    "texts, lists, dicts, arrays or tensors"
                ) from None
            if len(packed) > _MOST_RESULT:
                raise UserError(
                    f"what state.once({name}) has made has {len(packed):,} bytes; {_MOST_RESULT:,} "
                    "can be kept with every step"
                )
            self._at = at._replace(results={**at.results, key: packed})
            return self._objects()

        self._steps.purpose = f"state.once({name})"
        return self._steps.step(make, describe)

    def _next_call(self, name: str) -> tuple[str, int]:
        """Return the key of a call of once(), place and number, which a successor finds as well."""
        place = f"{self._place}{' after its steps' if self._place and self._used else ''} {name}"
        if not self._place and self._at.n and not self._at.begun:  # In a loop of state.step().
            place = f"step {self._at.n} {name}"
        number = self._calls.get(place, 0)
        self._calls[place] = number + 1
        return place, number

    # ---- Loops -----------------------------------------------------------------------------------

    def epochs(self, n: int, start: int = 0) -> Iterator[int]:
        """Yield the numbers of epochs up to `n` - 1. A successor begins with the epoch under way.

        `start`: the first epoch at the first start, as from a checkpoint. The end of an epoch is
        kept as a step is, so changes since the epoch's last step are kept as well.
        """
        if self._place or self._used:
            raise UserError("state.epochs() is called once, and not within another loop of State's")
        if not self._at.begun:
            self._at = self._at._replace(epoch=start, begun=True)
        while self._at.epoch < n and not self._at.ended:
            self._place, self._used = f"epoch {self._at.epoch}", False
            _random.seed_from(self._base, f"top of {self._place}")  # A successor may begin here.
            yield self._at.epoch
            self._end_epoch()
        self._steps.compare(at_end=True)
        self._place, self._used = "after", True

    def _end_epoch(self) -> None:
        """Commit the end of an epoch. All ranks agree on whether to stop."""
        at, wish = self._at, self._wish

        def describe(_: None) -> dict[str, Any]:
            ends = at.stopping or self._any(wish)
            results = {k: v for k, v in at.results.items() if not k[0].startswith("epoch")}
            self._at = at._replace(epoch=at.epoch + 1, batch=0, ended=ends, results=results)
            return self._objects()

        self._steps.purpose = "the end of an epoch"
        self._steps.step(lambda: None, describe)

    def steps(self, data: Iterable[Any], epochs: int | None = None) -> Iterator[Any]:
        """Yield the batches of `data` that are not done yet; each batch is one step.

        Call this once in each epoch of state.epochs(). Without that loop, call it once in all, with
        the number of passes as `epochs`.
        """
        if self._used or (self._place and epochs is not None):
            raise UserError(
                "state.steps() is called once, or once an epoch within state.epochs(), which then "
                "has the number of epochs"
            )
        self._advise(sys._getframe(1))
        if self._place:
            yield from self._pass(data)
            return
        for _ in self.epochs(1 if epochs is None else epochs):
            yield from self._pass(data)

    def _pass(self, data: Iterable[Any]) -> Iterator[Any]:
        self._used = True
        yield from self._steps_of(data)
        _random.seed_from(self._base, f"after the steps of {self._place}")

    def _steps_of(self, data: Iterable[Any]) -> Iterator[Any]:
        self._seed.give(data, self._engine.rank, self._at.epoch)
        _random.seed_from(self._base, f"epoch {self._at.epoch}")
        if self._at.stopping:
            return
        differs = True
        rows, calm = batches(data, self._at.batch)
        self._seed.take_back()
        for batch in rows:
            self._begin(differs, self._at.batch == 0)
            try:
                while True:
                    if calm:  # Else the pipeline's draws would disturb a step's.
                        _random.seed_from(self._base, f"step {self._at.n}")
                    self._steps.sampled.batch(batch)
                    yield batch
                    if self._end(self._at.batch + 1):
                        break
                    self._losses.begin()
                    self._steps.begin(self._at.batch == 0)
            except GeneratorExit:
                self._leave()
                raise
            differs = False
            if self._at.stopping:
                return

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Make the block one step of a loop of your own.

        After a void step, everything is as before it, `n` too. So the loop has to ask State how far
        it is: `while state.n < 100:`.
        """
        if self._in_step:
            raise UserError("state.step() is within a step of State's already")
        self._advise(sys._getframe(2))
        self._used = True
        self._begin(True)
        try:
            _random.seed_from(self._base, f"step {self._at.n}")
            yield
        except BaseException as error:
            void = isinstance(error, Exception) and self._steps.aborted
            self._leave(said=not void)
            if not void:  # In a void step, an echo may have caused the exception.
                raise
            return
        if not self._end(self._at.batch + 1):
            self._calls.clear()  # The loop makes the same calls of once() again.
        self._in_step = False

    def _advise(self, frame: Any) -> None:
        """Say before a job's first step where the loop's source seems to break State's rule."""
        if self._at.n or (self._engine.rank and not self._strict):
            return
        remarks = advise(frame.f_code.co_filename, frame.f_lineno)
        say_or_refuse(remarks, self._strict, self._engine.say_once)

    # ---- One step --------------------------------------------------------------------------------

    def _begin(self, differs: bool, is_first: bool = False) -> None:
        self._steps.purpose = "a step"
        self._steps.look(differs)
        self._before = self._held() if differs else self._last
        self._wish_before = self._wish
        self._losses.begin()
        self._steps.begin(is_first)
        self._in_step, self._replaying = True, False

    def _end(self, batch: int) -> bool:
        """End the step. False: it is void, and all is as it was when it began."""
        either(COMPILERS)._pynative_executor.sync()  # Wait for the step's last sums.
        at = self._at

        def describe() -> dict[str, Any]:
            results = {k: v for k, v in at.results.items() if not k[0].startswith("step")}
            stopping = self._steps.hear(self._losses, at.n + 1, self._wish) or at.stopping
            if self._losses.act is Act.SKIP:  # Only its number and its place in the data stay.
                self._steps.restore()
                self._put(self._before)
            self._at = at._replace(n=at.n + 1, batch=batch, stopping=stopping, results=results)
            return self._objects()

        done = self._steps.end(describe)
        if not done:
            self._undo(at)
        self._in_step, self._replaying = not done, not done
        return done

    def _undo(self, at: _At) -> None:
        self._at, self._wish = at, self._wish_before
        self._put(self._before)

    def _leave(self, said: bool = True) -> None:
        """Leave a step undone, after `break`, `return` or an exception."""
        if sys.is_finalizing():
            return
        self._steps.give_up()
        self._undo(self._at)
        self._in_step = self._replaying = False
        if said:
            say(
                f"step {self._at.n + 1} was left before its end, so it is undone: all is as after "
                f"step {self._at.n}; state.stop() ends a loop after its step"
            )

    def _any(self, wish: bool) -> bool:
        """Return whether any rank has the wish to stop. MarkedError: a fault came."""
        return any(told for (told,) in tell(self._steps.session, _WISH, wish))

    # ---- What is kept ----------------------------------------------------------------------------

    def _held(self) -> dict[str, Any]:
        """Return a copy of all that is kept besides parameters."""
        named = {name: _contents(name, thing) for name, thing in self._named.items()}
        return {"vars": self._values.packed(), "named": named, "cells": self._cells.now()}

    def _put(self, held: dict[str, Any]) -> None:
        self._values.put_back(held["vars"])
        self._put_named(held["named"])
        self._cells.put(held["cells"])

    def _put_named(self, named: dict[str, Any]) -> None:
        for name in named.keys() & self._named.keys():
            _callbacks.give_back(self._named[name], named[name])

    def _objects(self) -> dict[str, Any]:
        self._last = held = self._held()
        changed = {"cells": self._cells.changed()}
        return {"call": 0, "at": tuple(self._at), "base": self._base, **held, **changed}

    def _take(self, objects: dict[str, Any]) -> None:
        """Set everything to what it was after the last step."""
        self._at, self._base = _At(*objects["at"]), objects["base"]
        self._values.put_back(objects["vars"])
        self._put_named(objects["named"])
        self._cells.put_changed(objects["cells"])


def _started() -> Engine:
    engine = _engine.engine
    if engine is None:
        raise UserError(
            "State needs a program that was started by `holdfast msrun ... train.py`, or by "
            "`python -m holdfast.mindspore train.py`"
        )
    return engine


def _contents(name: str, thing: Any) -> _callbacks.Kept:
    """Return what is kept of an object that is no cell: its state_dict() or plain attributes."""
    if not _callbacks.has_state_dict(thing):
        return _callbacks.attributes(thing, lambda text: None)
    found = thing.state_dict()
    try:
        return {_callbacks.of_state_dict(k): _data.dumps(v, ()) for k, v in found.items()}
    except _data.NoDataError as error:
        raise UserError(f"state_dict() of `{name}` can not be kept: {error}") from None


def _sorted_out(
    network: Any, optimizer: Any, named: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """Return the things that have parameters, and the others that have something to keep."""
    from mindspore import Parameter, nn

    for what, thing in (("network", network), ("optimizer", optimizer)):
        if not isinstance(thing, nn.Cell):
            raise UserError(
                f"State(network, optimizer): the {what} is a {type(thing).__name__}, and no cell"
            )
    rest = {}
    for name, thing in named.items():
        parts = thing if isinstance(thing, (list, tuple)) else [thing]
        if all(isinstance(part, (nn.Cell, Parameter)) for part in parts):
            continue
        if not hasattr(thing, "__dict__"):
            raise UserError(
                f"`{name}` is a {type(thing).__name__}, of which nothing can be kept: give a cell, "
                "parameters, or an object that has state_dict() and load_state_dict(); plain "
                "values belong into state.vars(...)"
            )
        rest[name] = thing
    return [network, optimizer, *named.values()], rest


def _parameters(things: list[Any]) -> list[Any]:
    """Return all parameters that things hold, each once."""
    from mindspore import Parameter, nn

    found: list[Any] = []
    for thing in things:
        values: list[Any] = [thing]
        if isinstance(thing, nn.Cell):
            values += hidden_parameters(thing)
        elif not isinstance(thing, (Parameter, list, tuple)):
            values = list(getattr(thing, "__dict__", {}).values())
        found += _callbacks.held_by(values, found)
    return found
