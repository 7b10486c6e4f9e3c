"""Hold one process's side of its job: worker, session, and who answers collectives now."""

from __future__ import annotations

import atexit
import enum
import os
import select
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import holdfast
from holdfast import _core
from holdfast._errors import Error, MarkedError, PeerError, UserError
from holdfast.torch._buckets import Buckets
from holdfast.torch._early import Early

if TYPE_CHECKING:
    from holdfast.torch._group import HoldfastGroup

Status = _core.Status


def say(text: str) -> None:
    """Write one line for the user."""
    print(f"holdfast: {text}", file=sys.stderr, flush=True)


class Phase(enum.Enum):
    """Tells who answers collectives, and what happens to one that a fault cut short."""

    EARLY = enum.auto()  # Between init() and State: the other ranks, if this is the first start.
    CATCHING_UP = enum.auto()  # A restarted process on its way to the step of the others: nobody.
    LIVE = enum.auto()  # The session's groups.
    PLAIN = enum.auto()  # The same without State: a fault is an error.


class Engine:
    """One per process."""

    def __init__(self, managed: bool) -> None:
        """Start the worker. `managed`: a State will come."""
        if not os.environ.get("MS_ROLE") and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError(
                "this process was told to be one of several (WORLD_SIZE) by another launcher; "
                "start the program with `holdfast run --nproc-per-node N program.py`"
            )
        self._job = holdfast.init()
        self.worker: Final = self._job.worker
        self.phase = Phase.EARLY if managed else Phase.PLAIN
        self.session: _core.Session | None = None
        self.buckets: Final = Buckets(say)
        self.early: Final = Early(self)
        self.groups: weakref.WeakSet[HoldfastGroup] = weakref.WeakSet()
        self.in_step = False  # Within a step of the user's.
        self.marked = False  # An echo was given in this step.
        self.too_late = ""  # Why nothing can be exchanged any more: another rank has ended.
        self.asked = False  # Since the last step, the other ranks answered a collective.
        self.guessed = False  # Since the last step, this process answered one by itself.
        self.echoing = 0  # > 0: collectives are answered locally, whatever the phase.
        self.armed: deque[torch.Tensor] = deque()  # Answers to the next broadcasts.
        self.rehearsing = False  # In a waiting spare's backward pass, which gets only echoes.
        self.creating = False  # torch is making the default group.
        self.own_use = 0  # > 0: optimizer steps are ours, not the program's.
        self.warned: set[str] = set()
        self.meet: Callable[[], None] = lambda: None  # State's: begin a step with all.
        # Called with the seeds of this process at its State and those of its rank's first one.
        self.see_beginning: Callable[[Any, Any], None] = lambda mine, first: None
        self.at_end: list[Callable[[], None]] = []  # Called as the training ends.
        self.see_that_it_was_done: Callable[[], None] = lambda: None
        self.observer: Any = observer_factory(self)
        self._place: _core.Place | None = None
        self._spare = self.worker.waits_spare

    # ---- The place in the job -------------------------------------------------------------------

    @property
    def place(self) -> _core.Place:
        """The place of this process in the job. A spare waits for it."""
        if self._place is None:
            self._place = self._job.place
        return self._place

    @property
    def rank(self) -> int:
        """The own rank. A spare waits for it, unless it is bound to a rank."""
        bound = self.worker.bound_rank if self.waits_spare else None
        return self.place.rank if bound is None else bound

    @property
    def place_known(self) -> bool:
        """Whether `place` does not wait."""
        return self._place is not None

    @property
    def world_size(self) -> int:
        """The number of ranks, without waiting for the own one."""
        if self._place is None and self.worker.solo:
            return 1
        given = os.environ.get("MS_WORKER_NUM", "")
        return int(given) if self._place is None and given.isdigit() else self.place.world_size

    @property
    def waits_spare(self) -> bool:
        """Whether this process is a spare that has not got its place yet."""
        return self._spare and self._place is None

    def place_is_due(self) -> bool:
        """Whether a spare that waits can have its place now, or is not needed any more."""
        place = int(os.environ["HOLDFAST_SPARE_FD"])
        return bool(select.select([place], [], [], 0)[0])

    @property
    def first_start(self) -> bool:
        """Whether the other ranks start at the same time as this one. Never waits for a spare."""
        # A process that was restarted by hand has no attempt number.
        return not self._spare and self.place.attempt <= 1 and not self.early.succeeds

    # ---- The session ----------------------------------------------------------------------------

    def open(self, private_bytes: int, common_bytes: int = 0) -> _core.Session:
        """Open the state of this rank, of which so many of the first bytes are all ranks' alike."""
        _ = self.place  # A spare waits here. From now on its rank is known.
        self.early.end()
        self.session = self.worker.open(
            private_bytes=private_bytes, own_private=True, common_bytes=common_bytes
        )
        self.session.end_on_exit()
        return self.session

    def set_phase(self, phase: Phase) -> None:
        """Change who answers collectives."""
        self.phase = phase
        for group in self.groups:
            group.forget()

    def drain(self) -> None:
        """Wait for collectives that run beside the caller."""
        while any(group.runner.drain() for group in list(self.groups)):
            pass  # A callback of one group may have started a sum of another.

    def settle(self) -> None:
        """Drain, then raise the first error."""
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
        """Note a collective that was not completed. Return if it gets an echo, else raise."""
        text = _core.last_error()
        if status == Status.MISMATCH:
            raise PeerError(
                text or "the ranks asked for different collectives; no data was exchanged"
            )
        if status == Status.LEFT:
            raise PeerError(text or "a rank has ended its training and takes no part in this")
        if status != Status.ABORTED:
            _core.check(status)
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
        """Raise if `what`, which makes a step, is called within another step."""
        if self.in_step:
            raise UserError(
                f"`{what}` within a step, as is each of state.steps(...): that goes on until its "
                "loop asks for the next batch, or is left"
            )

    def see_that_others_are_there(self) -> None:
        """Raise if another rank has ended while there is still something to exchange with it."""
        if self.too_late:
            raise PeerError(
                f"{self.too_late}; make the same steps on all ranks, and let all meet before any "
                "ends: `dist.barrier()` as the last line"
            )

    def note_between(self) -> None:
        """Note a collective between steps whose result may decide what the program does."""
        if self.session is not None and not self.in_step and not self.own_use:
            self.guessed |= self.phase is Phase.CATCHING_UP
            self.asked |= self.phase is Phase.LIVE

    def warn_once(self, text: str) -> None:
        """Say something at most once."""
        if text not in self.warned:
            self.warned.add(text)
            say(text)

    def finish(self) -> None:
        """Prepare for the good end of the training. UserError: it is not over."""
        if self.phase is Phase.EARLY and self.session is None and not self.waits_spare:
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
        """Say that the training ended well. UserError: it is not over."""
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

    def __init__(self, engine: Engine) -> None:
        """Ignore the engine."""

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *_: False


observer_factory: Callable[[Engine], Any] = Unobserved
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
    if engine is not None and engine.phase is Phase.EARLY and not engine.own_use:
        raise UserError(
            "an optimizer made a step between hf.init() and hf.State(...), where nothing is "
            "exchanged with the other ranks; make the State before the first step"
        )


def _finish_when_the_program_ends(engine: Engine) -> None:
    """Have the engine finish at an exit without an error.

    Python does not tell its exit code, but the C library does. So the C library ends the session,
    after all of Python's own exit handlers (Session.end_on_exit).
    """
    owner = os.getpid()

    def at_exit() -> None:
        # An exception that nobody caught leaves its trace in sys.last_value.
        if os.getpid() != owner or getattr(sys, "last_value", None) is not None:
            return
        try:
            engine.finish()
        except UserError as error:
            print(f"holdfast: {error}", file=sys.stderr, flush=True)
            sys.stdout.flush()
            os._exit(1)  # After an exception here the exit code would be 0.

    atexit.register(at_exit)
