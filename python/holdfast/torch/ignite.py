"""Ignite's Engine, with its own loop, its handlers, metrics and evaluators.

    import holdfast.torch as hf
    from holdfast.torch.ignite import hold

    hf.init()
    trainer = hold(create_supervised_trainer(model, optimizer, loss), model, optimizer)
    trainer.run(loader, max_epochs=3)

See docs/trainers.md. The names of Ignite that are used and are not documented there: Engine's
_run_once_on_dataset_legacy, _setup_engine, _fire_event, _event_handlers, _dataloader_iter,
_init_iter and _is_done, and _EngineTerminateException; and of ignite.distributed the class
_NativeDistModel, two of whose methods are replaced in memory when this module is imported:
backend(), since idist.auto_model() knows no backend "holdfast" and would leave the model without
DistributedDataParallel, and _compute_nproc_per_node(), which makes a group of Gloo's.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import FunctionType
from typing import Any, Final, TypeVar

from holdfast._errors import UserError
from holdfast.torch._attributes import Attributes, the
from holdfast.torch._driven import Driven
from holdfast.torch._groups import Groups
from holdfast.torch._held import say_what_is_lost, see_version
from holdfast.torch._state import State

TRIED: Final = ("0.5",)
_BOXES: Final = (list, dict, set, deque)
_OURS: Final = "holdfast"  # The backend of hf.init()'s group.
_Engine = TypeVar("_Engine")


def hold(engine: _Engine, *things: Any, **named: Any) -> _Engine:
    """Keep the training that an Engine makes; return the Engine. Call this before run().

    `things`, `named`: what State(...) takes: models, optimizers; schedulers, lists that handlers
    fill, and the like by name. Handlers that are objects are found, also those of evaluators that
    handlers name; an evaluator may be given by name, too.

    Errors: UserError if the Engine is none of Ignite, or was held before.
    """
    library = sys.modules.get("ignite.engine")
    if library is None or not isinstance(engine, library.Engine):
        raise UserError(
            f"hold() is for an Engine of Ignite, and was given a {type(engine).__name__}"
        )
    see_version("ignite", TRIED)
    _Held(engine, things, named)
    return engine


def _prepare_distributed() -> None:
    """Have ignite.distributed take Holdfast's group for one of Gloo's."""
    kind: Any = importlib.import_module("ignite.distributed.comp_models.native")._NativeDistModel
    name, count = kind.backend, kind._compute_nproc_per_node

    def backend(self: Any) -> Any:
        given = name(self)
        return "gloo" if given == _OURS else given

    def compute_nproc_per_node(self: Any) -> Any:
        ours = name(self) == _OURS
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if ours else count(self)

    kind.backend, kind._compute_nproc_per_node = backend, compute_nproc_per_node


class _Held:
    """What is put in place of methods of one Engine."""

    def __init__(self, engine: Any, things: Any, named: dict[str, Any]) -> None:
        self._engine = engine
        self._things = things
        kind = sys.modules["ignite.engine"].Engine
        self._others = [thing for thing in named.values() if isinstance(thing, kind)]
        self._named = {n: thing for n, thing in named.items() if not isinstance(thing, kind)}
        self._events = sys.modules["ignite.engine"].Events
        self._over = sys.modules["ignite.engine.engine"]._EngineTerminateException
        self._driven: Driven | None = None
        self._data: Any = None
        self._is_within = False  # A replacement has not come to its epoch yet.
        self._has_ended_epoch = False  # The handlers of the epoch's end were called in its step.
        self._run = engine.run
        self._run_once = engine._run_once_on_dataset_legacy
        self._fire = engine._fire_event
        engine.interrupt_resume_enabled = False  # The loop without a generator.
        engine.interrupt = self._interrupt
        engine.run = self._run_held
        engine._run_once_on_dataset_legacy = self._run_epoch
        engine._setup_engine = self._setup_engine
        engine._fire_event = self._fire_event

    # ---- In place of the Engine's own -----------------------------------------------------------

    def _interrupt(self) -> None:
        raise UserError("hold() can not keep an Engine that interrupt() stops; terminate() ends it")

    def _run_held(self, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        if self._driven is not None:
            raise UserError("hold() keeps one call of run(); this is another")
        if data is None:
            raise UserError("hold() can not keep run() without data: a step is made of its batch")
        if self._engine._event_handlers[self._events.DATALOADER_STOP_ITERATION]:
            raise UserError(
                "hold() can not keep a handler of DATALOADER_STOP_ITERATION, which the held loop "
                "does not come to; use EPOCH_STARTED"
            )
        self._data = data
        return self._run(data, *args, **kwargs)

    def _setup_engine(self) -> None:
        self._engine._dataloader_iter = iter(())  # Each epoch gets one of its own.

    def _fire_event(self, event: Any, *args: Any, **kwargs: Any) -> None:
        events = self._events
        if event is events.EPOCH_STARTED and self._is_within:
            return  # The predecessor has begun it.
        if event is events.EPOCH_COMPLETED and self._has_ended_epoch:
            self._has_ended_epoch = False
            return
        if self._driven is not None and event is events.ITERATION_COMPLETED:
            self._driven.see_that_it_is_not_void()
        self._fire(event, *args, **kwargs)
        if event is events.STARTED and self._driven is None:
            self._make_state()

    def _run_epoch(self) -> float:
        driven, engine = self._driven, self._engine
        assert driven is not None
        if not self._is_within and not driven.enter():
            return 0.0
        self._is_within = False

        def body() -> tuple[float, Exception | None]:
            engine._init_iter = driven.state.batch
            engine._dataloader_iter = _feed(driven)
            try:
                seconds = self._run_once()
            except self._over as over:
                return 0.0, over
            engine.state.times[self._events.EPOCH_COMPLETED.name] = seconds
            driven.see_that_it_is_not_void()
            self._fire(self._events.EPOCH_COMPLETED)
            return seconds, None

        def ends() -> bool:
            return bool(engine.should_terminate) or engine._is_done(engine.state)

        seconds, over = driven.run(body, ends)
        if over is not None:
            raise over
        self._has_ended_epoch = True
        return seconds

    # ---- What is kept ---------------------------------------------------------------------------

    def _make_state(self) -> None:
        engine = self._engine
        length = len(self._data) if hasattr(self._data, "__len__") else None
        if engine.state.epoch_length != length or length is None:
            raise UserError(
                f"hold() keeps epochs that are passes over the data, and epoch_length is "
                f"{engine.state.epoch_length}, with {length} batches of data; leave epoch_length "
                "out, and give run() an iterable with a length"
            )
        engines = _engines_from(engine, self._others)
        self._see_that_no_other_runs(engines)
        keepers = dict(self._keepers(engines))
        state = State(*self._things, **keepers, **self._named)
        say_what_is_lost(state, keepers.values(), "ignite.")
        self._name_boxes(state, engines)
        epochs = engine.state.max_epochs or sys.maxsize
        self._driven = Driven(state, Groups(self._data, 1), epochs)
        for other in engines[1:]:
            other._fire_event = partial(self._fire_other, other._fire_event)
        for handler in _objects_of(engines):
            saver: Any = getattr(handler, "save_handler", None)
            if saver is not None and state.engine.seat.rehearses:
                handler.save_handler = lambda *_: self._driven.see_that_it_may_save()
            elif hasattr(saver, "remove"):
                saver.remove = partial(self._remove, saver.remove)
        if state.n and self._driven.enter():
            self._is_within = True
            engine.state.epoch -= 1  # The loop counts it again. In the last one it would end.

    def _see_that_no_other_runs(self, engines: list[Any]) -> None:
        """Have an Engine that was not found refuse to run within a step: nothing of it is kept."""
        kind: Any = sys.modules["ignite.engine"].Engine
        run, known = kind.run, {id(engine) for engine in engines}

        def run_known(other: Any, *args: Any, **kwargs: Any) -> Any:
            if id(other) not in known:
                raise UserError(
                    "hold() was not given an Engine that runs within a step, and finds none where "
                    "no handler names it: hold(..., evaluator=evaluator)"
                )
            return run(other, *args, **kwargs)

        kind.run = run_known
        self._engine.add_event_handler(self._events.COMPLETED, lambda: setattr(kind, "run", run))

    def _fire_other(self, fire: Callable[..., None], event: Any, *args: Any, **kw: Any) -> None:
        """Fire an evaluator's event, unless its result is worth nothing."""
        if event in (self._events.EPOCH_COMPLETED, self._events.COMPLETED):
            assert self._driven is not None
            self._driven.see_that_it_is_not_void()
        fire(event, *args, **kw)

    def _remove(self, remove: Callable[[Any], None], name: Any) -> None:
        assert self._driven is not None
        self._driven.see_that_it_may_save()  # A void step's score must not have a file deleted.
        with contextlib.suppress(FileNotFoundError):  # The step is made again.
            remove(name)

    def _keepers(self, engines: list[Any]) -> Iterator[tuple[str, Any]]:
        given = [*self._things, *self._named.values()]
        known = {id(thing) for thing in (*given, *engines)}
        for i, engine in enumerate(engines):
            hidden = {n for n in vars(engine) if n.startswith("_")}
            hidden |= {"interrupt_resume_enabled", "last_event_name"}
            yield f"engine{i}", Attributes(the(engine), known, hidden)
            found = Attributes(
                lambda own=engine: own.state,  # type: ignore[misc]
                *(known, {"batch", "dataloader", "times"}),
                may_be_large={"output"},
            )
            yield f"engine{i}_state", found
        for i, handler in enumerate(_objects_of(engines)):
            if id(handler) in known:
                continue
            name = f"handler{i}_{type(handler).__name__}"
            # State's own: what a metric of Ignite's tells by state_dict() takes exchanges.
            if hasattr(handler, "load_state_dict") and not _is_metric(handler):
                yield name, handler
            yield f"{name}_attributes", Attributes(the(handler), known)

    def _name_boxes(self, state: State, engines: list[Any]) -> None:
        """Name lists and the like that handlers use, and that State was not given."""
        if state.n or not state.engine.first_start or state.engine.seat.place.rank != 0:
            return
        given = {id(thing) for thing in self._named.values()}
        for function in _functions_of(engines):
            for name, value in _uses(function):
                if isinstance(value, _BOXES) and id(value) not in given:
                    state.engine.seat.say_once(
                        f"`{name}`, a {type(value).__name__} that the handler "
                        f"{function.__name__}() uses, is kept only if hold() is given it: "
                        f"hold(..., {name}={name})"
                    )


def _feed(driven: Driven) -> Iterator[Any]:
    return iter(lambda: driven.take()[0], driven)


def _is_metric(thing: Any) -> bool:
    return type(thing).__module__.startswith("ignite.metrics")


def _handlers_of(engine: Any) -> Iterator[Any]:
    """Yield an engine's handlers, without what Ignite puts around them."""
    for handlers in list(engine._event_handlers.values()):
        for handler, *_ in handlers:
            while (parent := getattr(handler, "_parent", None)) is not None:
                handler = parent()
            yield getattr(handler, "func", handler)


def _functions_of(engines: list[Any]) -> Iterator[Any]:
    for engine in engines:
        for handler in _handlers_of(engine):
            if isinstance(handler, FunctionType) and not handler.__module__.startswith("ignite."):
                yield handler


def _objects_of(engines: list[Any]) -> list[Any]:
    """Return the objects whose methods are handlers, or that are handlers, each once."""
    found: dict[int, Any] = {}
    for engine in engines:
        for handler in _handlers_of(engine):
            own = getattr(handler, "__self__", handler)
            if not isinstance(own, (FunctionType, type)) and hasattr(own, "__dict__"):
                found.setdefault(id(own), own)
    ids = set(map(id, engines))
    return [own for own in found.values() if id(own) not in ids]


def _uses(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function uses of the scopes around it, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # It has no value yet.
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _near(engine: Any) -> Iterator[Any]:
    """Yield what the handlers of an engine are given, and what they name."""
    for handlers in engine._event_handlers.values():
        for _, args, kwargs in handlers:
            yield from (*args, *kwargs.values())
    for handler in _handlers_of(engine):
        used = [value for _, value in _uses(handler)] if type(handler) is FunctionType else []
        yield from used or vars(getattr(handler, "__self__", handler)).values()


def _engines_from(engine: Any, others: list[Any]) -> list[Any]:
    """Return an engine, others, and those that their handlers use, and theirs."""
    kind, found = sys.modules["ignite.engine"].Engine, [engine, *others]
    seen = {id(one) for one in found}
    for known in found:
        for value in _near(known):
            if isinstance(value, kind) and id(value) not in seen:
                seen.add(id(value))
                found.append(value)
    return found


_prepare_distributed()
