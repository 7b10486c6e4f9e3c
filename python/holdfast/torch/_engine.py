"""Hold one process's side of its job: worker, session, and who answers collectives now."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast import _abi, _core
from holdfast._errors import Error, MarkedError, PeerError, UserError
from holdfast._say import say
from holdfast._seat import Phase, Seat
from holdfast._tables import load_tables
from holdfast.torch._buckets import Buckets
from holdfast.torch._early import Early
from holdfast.torch._launched import refuse_other_launchers
from holdfast.torch._optimizers import local
from holdfast.torch._work import Runner

Status = _abi.Status


class _Group(Protocol):
    """A process group, as the engine knows it."""

    runner: Runner

    def forget(self) -> None:
        """Forget who answers collectives. The next one finds out anew."""


class Engine:
    """A process's side of its job. There is one per process."""

    def __init__(self, managed: bool) -> None:
        """Start the worker. `managed`: a State will come."""
        refuse_other_launchers()
        self.seat: Final = Seat()
        self.phase = Phase.EARLY if managed else Phase.PLAIN
        self.session: _core.Session | None = None
        self.buckets: Final = Buckets(say)
        self.early: Final = Early(self.seat)
        self.tables: list[Any] = []  # Each Embedding, in the order in which they were made.
        self.served: list[Any] = []  # Each ParameterServer, likewise.
        self.tables_from = ""  # The folder with whose rows they begin.
        self.groups: weakref.WeakSet[_Group] = weakref.WeakSet()
        self.in_step = False  # A step of the program is under way.
        self.marked = False  # An echo was given in this step.
        self.too_late = ""  # Why nothing can be exchanged any more: another rank has ended.
        self.asked = False  # Since the last step, the other ranks answered a collective.
        self.guessed = False  # Since the last step, this process answered one by itself.
        self.echoing = 0  # > 0: collectives are answered locally, whatever the phase.
        self.armed: deque[torch.Tensor] = deque()  # Answers to the next broadcasts.
        self.rehearsing = False  # In a waiting spare's backward pass, which gets only echoes.
        self.creating = False  # torch is making the default group.
        self.own_use = 0  # > 0: optimizer steps are ours, not the program's.
        self.meet: Callable[[], None] = lambda: None  # Set by State: begin a step with all ranks.
        # Called with the seeds of this process at its State, and those of its rank's first process.
        self.see_beginning: Callable[[Any, Any], None] = lambda mine, first: None
        self.at_end: list[Callable[[], None]] = []  # Called as the training ends.
        self.see_that_it_was_done: Callable[[], None] = lambda: None  # Set by State.
        self.observer: Any = observer_factory(self.seat)

    @property
    def first_start(self) -> bool:
        """Whether all ranks start together. False in a spare, without waiting for its place."""
        return not self.seat.restarted and not self.early.succeeds

    # ---- The session ----------------------------------------------------------------------------

    def open(self, private_bytes: int, common_bytes: int = 0) -> _core.Session:
        """Open this rank's state. The first `common_bytes` of it are the same on all ranks."""
        _ = self.seat.place  # A spare waits here. From now on its rank is known.
        self.early.end()
        self.session = self.seat.worker.open(
            private_bytes=private_bytes, own_private=True, common_bytes=common_bytes, as_used=True
        )
        self.session.end_on_exit()
        for table in (*self.tables, *self.served):
            table.open(self.session)
        if self.tables_from:
            load_tables(self.session, self.tables_from)
        return self.session

    def push_tables(self) -> None:
        """Push the gradients of the step under way to the parameter servers."""
        for table in (*self.tables, *self.served):
            if status := table.push():
                self.cut_short(status)
                return

    def set_phase(self, phase: Phase) -> None:
        """Change who answers collectives."""
        self.phase = phase
        for group in self.groups:
            group.forget()

    def drain(self) -> None:
        """Wait for collectives that run on threads of their own."""
        while any(group.runner.drain() for group in list(self.groups)):
            pass  # A callback of one group may have started a sum of another.

    def settle(self) -> None:
        """Wait as drain() does, then raise the first error that a collective has had."""
        self.drain()
        first: BaseException | None = None
        for group in list(self.groups):
            try:
                group.runner.settle()
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first

    @contextmanager
    def echo(self, *armed: torch.Tensor) -> Iterator[None]:
        """Answer collectives locally; answer broadcasts with `armed` as long as there are any."""
        self.echoing += 1
        self.armed.extend(armed)
        try:
            yield
        finally:
            self.echoing -= 1
            self.armed.clear()

    def cut_short(self, status: int) -> None:
        """Handle the status of a collective that failed. Return if an echo may replace it."""
        text = _abi.last_error()
        if status == Status.MISMATCH:
            raise PeerError(
                text or "the ranks asked for different collectives; no data was exchanged"
            )
        if status == Status.LEFT:
            raise PeerError(text or "a rank has ended its training and takes no part in this")
        if status != Status.ABORTED:
            _abi.check(status)
        if self.phase is Phase.EARLY:
            return
        if self.in_step:
            self.marked = True
            return
        raise MarkedError(
            "a collective outside a step was not completed, since another process was lost; this "
            "process ends too, so that all start again"
            + ("" if self.phase is Phase.PLAIN else " from the last step")
        )

    def see_that_no_step_is_open(self, what: str) -> None:
        """Raise UserError if `what`, which makes a step, is called within another step."""
        if self.in_step:
            raise UserError(
                f"`{what}` within a step, as is each of state.steps(...): that goes on until its "
                "loop asks for the next batch, or is left"
            )

    def see_that_others_are_there(self) -> None:
        """Raise PeerError if a rank that is still needed has ended its training."""
        if self.too_late:
            raise PeerError(
                f"{self.too_late}; make the same steps on all ranks, and let all meet before any "
                "ends: `dist.barrier()` as the last line"
            )

    def note_between(self) -> None:
        """Note a collective between steps whose result may decide what the program does."""
        if self.session is not None and not self.in_step and not self.own_use:
            self.guessed |= self.phase is Phase.ECHO
            self.asked |= self.phase is Phase.LIVE

    def finish(self) -> None:
        """Do all that comes before session.end(). UserError: the training is not over."""
        if self.phase is Phase.EARLY and self.session is None and not self.seat.waits_spare:
            self.early.leave()
        self.drain()  # While there is a session.
        if self.session is None:
            return
        if self.in_step:
            raise UserError(
                "the program ends within a step: nobody asked for the batch after it, so it is "
                "not done. Let the loop over state.steps(...) come to its end, or say "
                "state.stop() in its last step"
            )
        self.see_that_it_was_done()
        while self.at_end:
            self.at_end.pop()()

    def end(self) -> None:
        """End the session: the training ended well. UserError: it is not over."""
        self.finish()
        session, self.session = self.session, None
        if session is None:
            return
        self.observer.ended()
        self.set_phase(Phase.PLAIN)
        try:
            try:
                self.settle()
            finally:
                session.end()
        except Error as error:
            say(str(error))


class Unobserved:
    """An observer that does nothing, unless `holdfast verify` puts its own in its place."""

    def __init__(self, seat: Seat) -> None:
        """Take what a real observer takes."""

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_: False


observer_factory: Callable[[Seat], Any] = Unobserved
engine: Engine | None = None


def start(managed: bool) -> Engine:
    """Return this process's engine; make it if there is none."""
    global engine
    if engine is None:
        engine = Engine(managed)
        _finish_when_the_program_ends(engine)
        register_optimizer_step_pre_hook(_no_update_before_state)
    return engine


def _no_update_before_state(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if engine is None or engine.phase is not Phase.EARLY or engine.own_use:
        return
    if not _changes_nothing(optimizer):
        raise UserError(
            "an optimizer made a step between hf.init() and hf.State(...), where nothing is "
            "exchanged with the other ranks; make the State before the first step"
        )


def _changes_nothing(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step only makes the optimizer's state, as set_optimizer_state_dict() of torch."""
    gradients = (p.grad for group in optimizer.param_groups for p in group["params"])
    return not any(group.get("lr", 1) for group in optimizer.param_groups) and not any(
        bool(local(gradient).any()) for gradient in gradients if gradient is not None
    )


def _finish_when_the_program_ends(engine: Engine) -> None:
    """Have the engine finish at an exit without an error.

    Python's exit handlers do not learn the exit code, but those of the C library do. So these end
    the session, after all of Python's (Session.end_on_exit).
    """
    owner = os.getpid()

    def at_exit() -> None:
        # An exception that nobody caught leaves its trace in sys.last_value.
        if os.getpid() != owner or getattr(sys, "last_value", None) is not None:
            return
        try:
            engine.finish()
        except UserError as error:
            say(str(error))
            sys.stdout.flush()
            os._exit(1)  # After an exception here the exit code would be 0.

    atexit.register(at_exit)
