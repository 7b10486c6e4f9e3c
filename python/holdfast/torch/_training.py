"""The training of one State: where the program is, and how steps begin, end or are left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast._advice import advise, advise_of_attributes, plain_attributes, say_or_refuse
from holdfast._errors import UserError
from holdfast._versions import say_void
from holdfast.torch._engine import Engine
from holdfast.torch._kept import Kept
from holdfast.torch._once import Results
from holdfast.torch._position import Progress, Sources
from holdfast.torch._random import whereabouts
from holdfast.torch._sampled import Sampled
from holdfast.torch._versions import Between, Versions


class Training:
    """All steps of a State, whichever loop makes them. Not thread-safe."""

    def __init__(
        self, engine: Engine, kept: Kept, versions: Versions, progress: Progress, strict: bool
    ) -> None:
        """Stand where `versions` has brought everything."""
        self.engine = engine
        self.kept = kept
        self.versions = versions
        self.progress = progress
        self.sources = Sources(progress.position, kept.others)
        self.results = Results(engine, kept, versions, progress)
        self.sampled = Sampled(engine, kept, progress)
        self.current_epoch: int | None = None  # Of the loop over state.epochs() under way.
        self.turn = 0  # How often steps() was called in that epoch.
        self.was_stopped = False  # stop() after the last step of an epoch ended that loop.
        self.arrived = progress.n == 0  # This process is at the step from which the others go on.
        self.has_updated = False  # An optimizer made an update in the step under way.
        self.left = 0  # The step in which the loop was left after an update; 0: none.
        self.replaying = False
        self.drawn = 0  # 1: the position counts the batch of the step under way.
        self.seen = False  # This process has come to the end of a step.
        self.on_commit: list[Callable[[int], Any]] = []
        self._strict = strict
        self._wish = False  # progress.wish, as before the step under way.
        self._attributes: dict[str, Any] = {}  # Of modules, before the first step.
        # Marks of what is kept and of the generators, after the last own step or once(): see below.
        self._left: tuple[dict[str, Any], bytes] | None = None

    @property
    def n(self) -> int:
        """Steps that are done."""
        return self.progress.n

    @property
    def stopped(self) -> bool:
        """Whether any rank has called stop(), in a step that is done or after the last step."""
        return self.progress.stopped or self.was_stopped

    # ---- One step -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a step. UserError: the loop was left in an earlier one after its update."""
        self._see_that_no_update_was_lost()
        for served in self.engine.served:
            served.see_that_none_was_written(self.versions.tensors)
        self._wish = self.progress.wish
        self.versions.begin()
        self.progress.wish = self._wish
        self.has_updated = False
        self.versions.losses.begin()
        for table in self.engine.tables:
            table.forget()
        for served in self.engine.served:
            served.begin()
        self.progress.seeds.derive("step", self.n).set()
        self.sampled.begin()
        self.engine.observer.began(self.n + 1)

    def finish(self, may_wait: bool = False) -> bool:
        """End a step. False: it was void, and all is as before it. `may_wait`: see commit()."""
        n, wish, observer = self.n + 1, self.progress.wish, self.engine.observer
        self.engine.drain()
        if observer.voids(n):
            self.engine.marked = True
        if not self.seen:
            self.kept.see_that_buffers_are_kept()
            self.kept.see_that_it_is_whole()  # A scheduler may have been made since.
            now = plain_attributes(self.kept.models.values())
            self._remark(advise_of_attributes(self._attributes, now))
            self.seen = True
        self.results.prune()
        self.sampled.end()  # commit() restores a void step.
        is_made = self.versions.commit(self.has_updated, may_wait, self.sampled.kept)
        self.sampled.leave()
        self._forget_served()
        self.engine.in_step = self.engine.marked = False
        self.replaying = not is_made
        if not is_made:
            self.progress.wish = self._wish  # The body calls stop() again.
            if not self.engine.seat.rehearses:
                say_void(n, self.engine.seat.place.rank)
            observer.was_void(n)
            return False
        self.progress.wish = wish
        for function in self.on_commit:
            function(n)
        observer.done(n)
        return True

    def leave(self, between: Between | None) -> None:
        """Take a step back. What the program changed `between` the steps before it stays."""
        self.engine.in_step = self.engine.marked = False
        self.sampled.leave()
        self._forget_served()
        self.versions.restore()
        if between is not None:
            between.put_back(self.kept)

    def _forget_served(self) -> None:
        for served in self.engine.served:
            served.forget()

    def arrive(self) -> None:
        """Note that the others' step is reached, and take back changes made on the way."""
        self.versions.restore()
        self.arrived = True
        self.sampled.see_that_nothing_was_guessed()
        self.engine.guessed = False

    def advise(self, frame: Any) -> None:
        """Say before a job's first step where the loop's source seems to break State's rule."""
        is_first = self.engine.first_start and self.engine.seat.place.rank == 0
        if self.seen or self.n or not (is_first or self._strict):
            return
        # A trainer's hold() keeps a module's attributes.
        is_held = any(getattr(t, "keeps_attributes", False) for t in self.kept.others.values())
        self._attributes = {} if is_held else plain_attributes(self.kept.models.values())
        self._remark(advise(frame.f_code.co_filename, frame.f_lineno))

    def _remark(self, remarks: list[str]) -> None:
        say_or_refuse(remarks, self._strict, self.engine.seat.say_once)

    def _see_that_no_update_was_lost(self) -> None:
        """Raise UserError if a loop over steps() was left within a step, after an update."""
        if self.left:
            raise UserError(
                f"the loop over state.steps(...) was left within step {self.left}, after an "
                "optimizer's step, which was taken back. Let state.stop() end the loop, which it "
                "does after the step; and let no islice(), zip() or library count the batches: a "
                "void step's batch comes twice. Give steps() fewer batches instead"
            )

    def see_that_it_arrived(self) -> None:
        """Raise UserError if a successor has not come to the step of the others."""
        if not self.arrived and not self.progress.position.own:
            raise UserError(
                f"the program ends before it comes to the step after {self.n}, which was done when "
                "this process was started; all its starts run the same loops"
            )

    def make_once(self, key: Any, function: Callable[[], Any]) -> Any:
        """Return the result of a key. If there is none yet, make it with the other ranks."""
        if not self.results.knows(key):
            self.engine.observer.once_began(key)
            self.results.make(key, function)
            self.engine.observer.once_done(key)
        result = self.results.told(key)
        self._note_if_left()
        return result

    # ---- A step of a loop of the program's own --------------------------------------------------

    @contextmanager
    def own_step(self) -> Iterator[None]:
        """Make the block a step."""
        between = self._between_own_steps()
        self.begin()
        try:
            yield
        except BaseException:
            self.engine.drain()  # While in_step is set, a sum that fails only marks the step.
            self.leave(between)
            self._note_if_left()
            raise
        self.progress.position.own += 1
        if not self.finish(may_wait=True):
            self.results.begin_again()
            if between is not None:
                between.put_back(self.kept)
        self._left = self.kept.marks(), whereabouts()

    def _note_if_left(self) -> None:
        if self._left is not None:
            self._left = self.kept.marks(), whereabouts()

    def _between_own_steps(self) -> Between | None:
        """Return the changes before the first step. UserError: there are some between two steps."""
        if self._left is not None and self._left[1] != whereabouts():
            self.engine.seat.say_once(
                "random numbers were drawn between two steps of a loop of your own, where a "
                "replacement draws others: draw in `with state.step():`, or by state.once(f)"
            )
        if not self.arrived:
            self.arrive()
        elif self.n == 0:
            return Between(self.kept, self.versions.tensors())
        elif self._left is not None and (now := self.kept.marks()) != self._left[0]:
            name = next(n for n, mark in now.items() if self._left[0].get(n) != mark)
            raise UserError(
                f"`{name}` was changed between two steps of a loop of your own, which a "
                "replacement would not do again; change it within `with state.step():`"
            )
        return None
