"""State: everything that a step depends on, kept so that a fault in step n costs at most step n."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast import _core
from holdfast._errors import Error, LeftError, UserError
from holdfast.torch import _ddp, _engine
from holdfast.torch._advice import Advice, say_what_changed
from holdfast.torch._between import Between
from holdfast.torch._counts import Counts, batches_of
from holdfast.torch._data import fingerprint
from holdfast.torch._engine import Phase, say
from holdfast.torch._exit import note_an_exit
from holdfast.torch._frames import loop_was_left
from holdfast.torch._gradients import Gradients
from holdfast.torch._greeting import Hello, greet, greet_again
from holdfast.torch._hooks import HookState, is_hook_state, see_that_hooks_are_kept
from holdfast.torch._image import Image, Kept
from holdfast.torch._mementos import Mementos
from holdfast.torch._optimizers import holds_trained
from holdfast.torch._passes import Passes, see_that_passes_were_done
from holdfast.torch._position import Position, key_of
from holdfast.torch._random import add_passes_of_seeds, derive, passes_of_seeds, seed_all
from holdfast.torch._steps import Steps
from holdfast.torch._variables import ROOM

_Batch = TypeVar("_Batch")


class State:
    """What a step depends on, and the steps themselves.

    Version 0 of the session holds each rank's own beginning; a step of ours, number 1, makes the
    ranks equal where DistributedDataParallel wants it; so step n is version n + 1 of the session.
    """

    def __init__(self, *things: Any, **named: Any) -> None:
        """Keep `things` (models, optimizers) and `named` (schedulers, scalers, generators, ...).

        Waits for the other ranks. Afterwards everything is as after the last step of this rank, or
        as at the start: then modules in DistributedDataParallel are as rank 0's.

        Errors: UserError if something can not be kept or if the program has changed since the
        state was begun, PeerError if the ranks keep different things.
        """
        if _engine.engine is None or _engine.engine.phase is Phase.PLAIN:
            raise UserError(
                "call hf.init() in place of dist.init_process_group before hf.State(...)"
            )
        self._engine = _engine.engine
        if self._engine.session is not None:
            raise UserError(
                "this process has a State already; give it everything a step depends on"
            )
        self._kept = Kept()
        # Optimizers of other parameters, and when they first made a step.
        self._strangers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        self._counts: dict[str, int] = {}
        self._ddp: list[Any] = []
        self._seed = torch.initial_seed()
        self._stepped = False
        self._seen = False  # The state after a first step of this process.
        self._replaying = False
        self._position = Position()
        self._drawn = 0  # 1: it counts the batch of the step under way, which steps() gave.
        self._epochs_given = 0
        self._passes = Passes(say)
        self._variables = self._passes.variables
        self._epoch_read = False  # Before the first steps(): the program counts epochs itself.
        self._on_commit: list[Callable[[int], Any]] = []
        self._greeted = 0
        self._behind = True  # This process has not come to the step of the others yet.
        self._second_due = False  # Somebody has not.
        self._at = 0  # The version that everything is as after, but for what came between.
        self._after: dict[str, bytes] | None = {}  # Digests at the last step's end. None: warned.
        self._left = False  # A step was left in its midst.
        self._last = 0  # Epoch of the loop under way.
        self._restarted = False  # And has not come to its place in the data.
        self._resumes = False  # Or has, in the midst of a pass; its variables are not there yet.
        self._advice = Advice(self._engine)
        self._counting = Counts(say)
        for thing in things:
            self._add(self._name(thing), thing)
        for name, thing in named.items():
            self._add(name, thing)
        self._kept.see_that_it_is_whole()
        self._gradients = Gradients(self._kept)
        self._kept.room = see_that_hooks_are_kept(self._ddp, self._kept.others) + ROOM
        self._variables.not_ours = self._kept.ids()
        hook = register_optimizer_step_pre_hook(self._see_optimizer)
        self._engine.at_end.append(hook.remove)
        self._engine.meet = self._begin
        self._engine.end_open_step = self._end_open_step
        self._engine.see_that_it_was_done = self._see_that_passes_were_done
        self._open()

    # ---- What is kept ---------------------------------------------------------------------------

    def keep(self, name: str, thing: Any) -> None:
        """Refuse: the size of the state is fixed when it is made. Pass it to State by its name."""
        raise UserError(
            f"give `{name}` to State when it is made, State(..., {name}=...); it is fixed then"
        )

    def _name(self, thing: Any) -> str:
        kind = "model" if isinstance(thing, torch.nn.Module) else type(thing).__name__.lower()
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}{self._counts[kind]}"

    def _add(self, name: str, thing: Any) -> None:
        parts: dict[Any, Any] = {}
        if isinstance(thing, (dict, list, tuple)) and not hasattr(thing, "state_dict"):
            parts = dict(thing if isinstance(thing, dict) else enumerate(thing))
        if parts and (
            holds_trained(thing) or all(hasattr(p, "state_dict") for p in parts.values())
        ):
            for key, part in parts.items():
                self._add(f"{name}.{key}", part)
            return
        if thing is None:
            return
        self._kept.add(name, HookState(thing) if is_hook_state(thing) else thing)
        if isinstance(thing, torch.nn.Module):
            for ddp in _ddp.find(thing):
                if ddp in self._ddp:  # It was given twice, as itself and within something else.
                    continue
                _ddp.settle(ddp, self._engine)
                self._ddp.append(ddp)
        elif isinstance(thing, torch.optim.Optimizer):
            thing.register_step_post_hook(self._note_step)

    def _note_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._stepped = True
        self._gradients.see_update(optimizer)

    def _see_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._engine.own_use or self._kept.see_that_an_optimizer_is_kept(optimizer):
            return
        if self._engine.in_step and self._strangers.setdefault(optimizer, self._at) != self._at:
            self._engine.warn_once(
                f"{type(optimizer).__name__} updates parameters that State was not given: a "
                "replacement begins anew with them, and a void step counts twice. Give it both"
            )

    def _see_that_all_is_kept(self) -> None:
        """In the first step of this process: refuse what it has made and State does not keep."""
        if not self._seen:
            self._kept.see_that_buffers_are_kept()
            self._seen = True

    # ---- The beginning --------------------------------------------------------------------------

    def _open(self) -> None:
        engine = self._engine
        engine.own_use += 1
        with engine.echo():
            self._image = Image(self._kept, self._objects())
            if engine.waits_spare:
                for ddp in self._ddp:
                    _ddp.rehearse(ddp, engine)
        engine.own_use -= 1
        rank = engine.place.rank  # A spare waits here.
        if not engine.worker.solo:
            self._image.agree(engine.early.file(f"room-{rank}"))
        session = engine.open(self._image.bytes)
        self._session = session
        if session.fresh:
            self._image.write(session.private(0), self._objects(), with_gradients=False)
        session.join()
        self._restore()
        self._restarted = session.version > 1
        if not engine.worker.solo:
            engine.told.open(engine.early.file(f"told-{engine.place.rank}"), session.version)
            path = engine.early.file(f"variables-{engine.place.rank}")
            self._variables.open(path, session.version)
        engine.set_phase(Phase.CATCHING_UP)
        engine.in_step = True
        self._begin_native(restarted=True)
        while session.version == 0:
            self._equalise()
        engine.in_step = self._seen = False

    def _equalise(self) -> None:
        """Make step 1 of the session: rank 0's parameters and buffers for all, where DDP is."""
        self._engine.see_that_others_are_there()
        self._engine.set_phase(Phase.LIVE)
        for ddp in self._ddp:
            _ddp.equalise(ddp)
        if self._end_native():
            self._begin_native(restarted=True)

    def _begin_native(self, restarted: bool, afresh: bool = False) -> None:
        """Begin a step; after a re-forming, check that all ranks are of one kind.

        A step of the session that is still open is given up; it is as if it had not begun.
        `afresh`: what was done since the last step is given up, too, if a fault came.
        Where another rank has ended no step is begun: `engine.too_late` says so to whoever needs
        one, which code after the last step may not.
        """
        engine = self._engine
        engine.settle()  # Of a step that was left by an exception.
        engine.marked = self._left = False
        engine.too_late = ""
        try:
            self._begin_with_all(restarted, stale=afresh)
        except LeftError as error:
            engine.too_late = str(error)
            self._restore()

    def _begin_with_all(self, restarted: bool, stale: bool) -> None:
        session = self._session
        while True:
            # What was done since the last step, as a scheduler's per epoch, is not to be lost.
            if session.begin_step() and (stale or self._at != session.version):
                self._restore()
            if session.generation != self._greeted:
                if not self._greet(restarted):
                    continue
                self._greeted = session.generation
            if restarted or not self._second_due or self._greet_again():
                self._behind = self._behind and restarted
                return
            self._greeted = 0

    def _greet(self, restarted: bool) -> bool:
        """Tell the others what this rank keeps. False: a fault came."""
        session, told = self._session, self._engine.told
        shapes = bytes.fromhex(self._kept.shapes())
        mine = Hello(restarted, self._behind, shapes, session.version, told.digest())
        hellos = greet(session, mine)
        if hellos is None:
            return False
        self._second_due = any(hello.behind for hello in hellos)
        if restarted and all(hello.restarted for hello in hellos):
            if len({hello.told for hello in hellos}) > 1:  # A file was full.
                told.forget()
            self._engine.set_phase(Phase.LIVE)  # All come from the same point of the program.
            self._behind = self._second_due = False
        return True

    def _greet_again(self) -> bool:
        """As greet_again(). False: a fault came."""
        engine = self._engine
        if not greet_again(self._session, engine.asked, engine.guessed, self._behind):
            return False
        self._second_due = False
        return True

    # ---- Images ---------------------------------------------------------------------------------

    def _objects(self) -> dict[str, Any]:
        return {
            "seed": self._seed,
            "seeds": passes_of_seeds(),
            "position": self._position.objects(),
            "ddp": _ddp.begins_with(self._ddp),
            "gradients": self._gradients.objects(),
            "passes": self._passes.objects(),
            "counts": self._counting.objects(),
        }

    def _restore(self) -> None:
        objects = self._image.read(self._session.private(self._session.version))
        self._seed = objects["seed"]
        add_passes_of_seeds(objects["seeds"])
        self._position.restore(objects["position"])
        self._gradients.restore(objects["gradients"])
        _ddp.restore(self._ddp, objects["ddp"], self._engine)
        self._gradients.watch()
        self._passes.restore(objects["passes"])
        self._counting.restore(objects["counts"])
        self._at = self._session.version

    # ---- One step -------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Steps that are done, over all epochs; in the body of a step, those before it."""
        if self._restarted and not self._position.has_sources:
            self._variables.resume_ahead(sys._getframe(1))
        return max(0, self._session.version - 1)

    @property
    def epoch(self) -> int:
        """The epoch of the next step, from 0; who begins there says so: steps(epoch=epoch)."""
        self._epoch_read = self._epoch_read or not self._position.has_sources
        if self._restarted:
            self._variables.give_back(sys._getframe(1), passed_over=False)
        return self._position.epoch

    @property
    def batch(self) -> int:
        """Batches of this epoch that are done; in the body of a step, those before it.

        What `enumerate(state.steps(...))` counts.
        """
        at = self._position
        return at.index + at.own - self._drawn

    @property
    def replaying(self) -> bool:
        """Whether the step under way was begun before and was void."""
        return self._replaying

    def on_commit(self, function: Callable[[int], Any]) -> Callable[[int], Any]:
        """Call `function(n)` after each step n: at most once, as who is lost there has not."""
        self._on_commit.append(function)
        return function

    def _begin(self, afresh: bool = False) -> None:
        engine = self._engine
        engine.see_that_all_was_made()
        if engine.phase is not Phase.LIVE:
            engine.set_phase(Phase.LIVE)
        engine.in_step = True
        engine.exit_code = None  # Whoever was to end the program was caught.
        engine.told.enter_pass()
        self._begin_native(restarted=False, afresh=afresh)
        if engine.too_late:
            engine.in_step = False
            engine.see_that_others_are_there()
        self._stepped = False
        rank = engine.place.rank
        seed_all(derive(self._seed, "step", rank, self._session.version))

    def _end_native(self, again: bool = False) -> bool:
        """End a step of the session. True: it is void, and everything is as before it.

        `again`: then it is begun again at once, whatever the program does.
        """
        if is_void := self._commit(again):
            self._restore()
        return is_void

    def _commit(self, again: bool) -> bool:
        """Do that, and leave everything as it is; where the step is void, echoes are in it."""
        session, engine = self._session, self._engine
        engine.settle()
        self._variables.see(sys._getframe())
        if engine.marked:  # What echoes have touched is never staged.
            if again:  # The others wait until this rank has stopped, not for a copy.
                with suppress(LeftError):  # The step that is to be made again will say so.
                    session.begin_step()
            return True
        self._see_that_all_is_kept()
        at = self._position
        at.see_ahead()
        self._variables.note(sys._getframe(), at.is_last)
        gradients = self._gradients.end_step(self._stepped)
        self._image.write(session.private(session.version + 1), self._objects(), gradients)
        position = _core.Position(at.epoch, at.index + at.own)
        is_void = session.end_step(_core.Step(position=position))
        if not is_void:
            self._at = session.version
            engine.asked = engine.guessed = False
            if at.is_last:
                self._variables.end_pass(at.epoch, session.version)
            self._variables.done()
        return is_void

    def _finish(self, again: bool = False) -> bool:
        """End a step. False: it was void and is to be made again; `again`: which is certain."""
        n = self.n + 1
        is_void = self._end_native(again)
        self._engine.in_step = False
        self._replaying = is_void
        if is_void:
            if self._engine.place.rank == 0 or self._engine.world_size == 1:
                say(f"step {n} was void, it is made again")
            return False
        self._tell(n)
        return True

    def _tell(self, n: int) -> None:
        for function in self._on_commit:
            function(n)

    @contextmanager
    def step(self) -> Iterator[State]:
        """Make one step of a loop of your own: `while state.n < total: with state.step(): ...`.

        Afterwards `n` has grown by one, or not: then the same step is to be made again, so take its
        data by `n`. An exception in the body passes through; the step is not done.
        """
        self._engine.see_that_no_step_is_open("with state.step()")
        self._see_that_nothing_changed()
        self._advice.see_own_loop(sys._getframe(1))
        self._engine.told.see_own_loop()
        self._begin(afresh=True)  # On all ranks alike: a replacement can not do it again.
        if self._restarted:
            self._variables.resume(sys._getframe())
            self._restarted = False
        self._variables.not_ours = self._kept.ids()
        self._variables.hold(sys._getframe(), begins=False)
        try:
            yield self
        except BaseException as error:
            self._engine.drain()  # A sum cut short is marked while the step goes on.
            self._leave(error)
            raise
        self._position.own += 1
        if not self._finish():
            self._variables.put_back(sys._getframe())
        if self._after is not None:
            self._after = self._kept.digests()

    def _leave(self, error: BaseException | None = None) -> None:
        """Leave a step in its midst; what echoes have touched must not come into the next."""
        engine = self._engine
        engine.in_step = False
        self._left = True
        self._variables.done()
        note_an_exit(engine, error, sys._getframe(1))
        if engine.marked:
            self._restore()
            engine.marked = False  # What comes now is no part of the step: a fault is an error.

    def _see_that_nothing_changed(self) -> None:
        """Warn of what a loop of the user's own changes between its steps."""
        is_known = self._after and not self._left  # By an exception: what changed is no news.
        if is_known and say_what_changed(self._after or {}, self._kept.digests()):
            self._after = None

    # ---- Steps over data ------------------------------------------------------------------------

    def steps(
        self, data: Iterable[_Batch], epochs: int = 1, *, epoch: int | None = None
    ) -> Steps[_Batch]:
        """Yield the batches of `epochs` passes over `data`, one step each.

        What is returned has the length and the attributes of `data`, for functions that want them.

        `epoch` is the number of the first pass; else passes are counted from the first call on,
        and after a restart those that are done yield nothing.

        A void step's batch is yielded again. After a restart, batches that were used are passed
        over. Random generators are set at each step's start from (seed, rank, step), the order of
        the data from (seed, epoch); samplers with set_epoch are told the epoch.

        Errors: UserError if `data` can not tell its position, or if the program has asked for
        `state.epoch` and does not say which epoch this is.
        """
        if epoch is None and self._epoch_read:
            raise UserError(
                "the program asked for state.epoch, so it may not begin with epoch 0 after a "
                "restart; say which one this is: state.steps(loader, epoch=epoch)"
            )
        first = epoch
        if first is None:
            first = self._passes.begin(self._epochs_given, sys._getframe(1))
        self._epochs_given = first + epochs
        key = key_of(data, sys._getframe(1))
        return Steps(data, self._steps(data, range(first, first + epochs), key), epochs)

    def _steps(self, data: Any, epochs: range, key: int) -> Generator[Any]:
        source = self._position.source_of(data, self._seed, key)
        for epoch in epochs:
            self._engine.see_that_no_step_is_open("state.steps(...)")
            self._position.see_that_it_is_new(epoch)
            if epoch < self._position.epoch:
                self._position.pass_over(epoch, source)
                self._engine.told.leave_pass(epoch)
                self._variables.give_back(sys._getframe(), epoch)
                continue
            self._advice.enter_pass(knows=self._epoch_read)
            restored = self._restarted
            data_and_generators = (data, *source.feeder.generators)  # As long as they are used.
            self._variables.not_ours = self._kept.ids() | set(map(id, data_and_generators))
            passed_over = restored and epoch > self._position.epoch
            if restored:  # What the program did between passes that are done is not new.
                self._restore()
                self._restarted = self._engine.guessed = False
            self._resumes = restored and self._position.index > 0
            if self._position.begin(epoch, source):
                source.pass_over()
            else:
                view = self._session.private(self._session.version)
                image = self._image.tensors(view)
                made = Between(self._kept, image, same=restored)
                if passed_over or not restored:
                    self._hand_on(made, epoch, passed_over)
                between: Between | None = made
                done = batches_of(epoch - epochs.start, source.feeder.length, self._position.index)
                for batch in source.batches(self._prepare_a_fetch):
                    self._counting.see(sys._getframe(), done if restored else 0)
                    restored = False
                    if between is not None:
                        between.note_order(source.feeder.generators)
                    yield from self._until_done(batch, between, epochs[-1])
                    between = None
            if self._resumes:  # No step was left.
                self._variables.give_back(sys._getframe(), epoch)
            self._position.end(epoch)
            self._advice.leave_pass()
            self._engine.told.leave_pass(epoch)

    def _hand_on(self, between: Between, epoch: int, passed_over: bool) -> None:
        """Let a successor have what came before pass `epoch`; where that is this process, take it.

        `passed_over`: the program has not made it here, as its loop began at a newer snapshot's.
        """
        path = self._engine.early.file(f"between-{self._engine.place.rank}")
        if not between.hand_on(self._kept, path, (self._session.version, epoch), passed_over):
            raise UserError(
                f"after this restart the program begins with pass {epoch}, past what it does "
                f"before that (a scheduler's step, for one) and has not done since step {self.n}: "
                "this rank would go on with another state than the others. Let its loop begin "
                "with range(state.epoch if state.n else EPOCH, ...)"
            )

    def _see_that_passes_were_done(self) -> None:
        if self._restarted and self._position.has_sources:
            see_that_passes_were_done(self._epochs_given, self._position.epoch)

    def _prepare_a_fetch(self, before: int) -> None:
        """Let what a batch draws while it is made depend on its step alone."""
        version = self._session.version + before
        seed_all(derive(self._seed, "fetch", self._engine.place.rank, version))

    def _until_done(self, batch: Any, between: Between | None, last: int) -> Iterator[Any]:
        """Yield the batch of one step until it is done. `last`: epoch of the loop."""
        written = fingerprint(batch)
        self._last = last
        self._position.index += 1
        after = self._position.objects()
        while True:
            self._begin()
            self._position.restore(after)  # _begin() may have gone back.
            if self._resumes:
                self._variables.resume(sys._getframe())
                self._resumes = False
            self._drawn = 1
            self._variables.hold(sys._getframe(), begins=self._position.index == 1)
            given = Mementos(set(), with_tensors=False)
            given.add(batch)  # `labels = batch.pop("labels")` is the step's, too.
            try:
                yield batch
            except GeneratorExit:
                self._left_in_a_step(last)
                raise
            finally:
                self._drawn = 0
            if self._finish(again=True):
                return
            if between is not None:
                between.put_back(self._kept)
            self._variables.put_back(sys._getframe())
            given.see()
            given.put_back()
            self._counting.again(sys._getframe())
            if fingerprint(batch) != written:
                raise UserError(
                    f"step {self.n + 1} is to be made again, but its batch was changed in place; "
                    "let the body change a copy"
                )

    def _left_in_a_step(self, last: int) -> None:
        """End the step if it was made: its loop was left by `break`, `return` or an exception."""
        was_left = loop_was_left(sys._getframe(1))
        if not self._engine.in_step or sys.is_finalizing():
            return  # The program has ended, and its generators are closed.
        self._engine.drain()
        if not was_left or not self._stepped:
            self._leave()
            return  # An exception, or before the update.
        n = self.n + 1
        self._position.leave(last)  # A replacement does not come back into the loop either.
        if self._finish():
            self._position.end(last)
            self._engine.told.leave_pass(last)
        else:
            say(self._engine.give_up(n, "its loop had been left by `break`"))

    def _end_open_step(self) -> None:
        """At the program's end: end the step of a batch that next() gave, if it was made.

        No loop asks for another one. What is void stays so: at exit nothing can be brought back.
        """
        if not self._stepped:
            return
        n = self.n + 1
        self._position.leave(self._last)
        try:
            is_void = self._commit(again=False)
        except Error as error:
            self._engine.unmade = f"step {n} was not done when the program ended: {error}"
            return
        if is_void:
            self._engine.give_up(n, "the program ended")
        else:
            self._tell(n)
