"""State: everything that a step depends on, kept so that a fault in step n costs at most step n.

The rule: a step is a function of what State holds and of its batch. A fault loses all else.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook

from holdfast._errors import UserError
from holdfast._seat import Phase
from holdfast._vars import LIMIT, Vars
from holdfast.torch import _ddp, _engine
from holdfast.torch._hooks import HookState, is_hook_state, see_that_hooks_are_kept
from holdfast.torch._kept import Kept
from holdfast.torch._once import ROOM
from holdfast.torch._optimizers import Attributes, holds_trained
from holdfast.torch._position import Progress
from holdfast.torch._random import seeds_of_the_program
from holdfast.torch._steps import Steps, epochs, passes
from holdfast.torch._trainers import see_that_accumulation_is_kept, unwrapped
from holdfast.torch._training import Training
from holdfast.torch._versions import Versions

_Batch = TypeVar("_Batch")
_Result = TypeVar("_Result")
_P = ParamSpec("_P")


class State:
    """Everything that a step depends on, and the steps themselves. Not thread-safe.

    A program uses the methods and properties that docs/pytorch.md describes. All other names are
    for the package.
    """

    def __init__(self, *things: Any, strict: bool = False, **named: Any) -> None:
        """Keep `things` (models, optimizers) and `named` (schedulers, scalers, generators, ...).

        This waits for the other ranks. Afterwards, all that is kept is as it was after the job's
        last step. At the start of a job, all ranks get rank 0's DistributedDataParallel modules.

        `strict`: where the source seems to break the rule, raise an error instead of a remark.

        Errors: UserError if something can not be kept or if the program has changed since the
        state was begun, PeerError if the ranks keep different things.
        """
        if _engine.engine is None or _engine.engine.phase is Phase.PLAIN:
            raise UserError(
                "call hf.init() in place of dist.init_process_group before hf.State(...)"
            )
        self.engine = _engine.engine
        if self.engine.session is not None:
            raise UserError(
                "this process has a State already; give it everything a step depends on"
            )
        self.kept = Kept()
        self._ddps: list[Any] = []
        self._counts: dict[str, int] = {}
        for thing in things:
            self._add(self._name(unwrapped(thing)), thing)
        for name, thing in named.items():
            self._add(name, thing)
        self._see_that_tables_learn_right([*things, *named.values()])
        for table in self.engine.tables:
            self.kept.add(f"the rates of {table.label}", table.rates)
        for served in self.engine.served:
            served.see_that_it_is_kept(self.kept, self._ddps)
        see_that_accumulation_is_kept([*things, *named.values()], self.kept.others.values())
        self.kept.see_that_it_is_whole()
        self.kept.room = see_that_hooks_are_kept(self._ddps, self.kept.others) + LIMIT + 2 * ROOM
        # Optimizers of parameters that are not kept: the number of steps done when they first ran.
        self._strangers: WeakKeyDictionary[torch.optim.Optimizer, int] = WeakKeyDictionary()
        hook = register_optimizer_step_pre_hook(self._see_optimizer)
        self.engine.at_end.append(hook.remove)
        seeds = seeds_of_the_program()
        self.progress = Progress(seeds)
        self.versions = Versions(self.engine, self.kept, self._ddps, self.progress)
        hook = register_module_module_registration_hook(self._see_module)
        self.engine.at_end.append(hook.remove)
        self.engine.see_beginning(seeds, self.progress.seeds)
        self.engine.meet = self.versions.begin
        self.training = Training(self.engine, self.kept, self.versions, self.progress, strict)
        self.engine.see_that_it_was_done = self.training.see_that_it_arrived
        self.engine.observer.opened(self)

    # ---- What is kept ---------------------------------------------------------------------------

    def vars(self, **values: Any) -> Vars:
        """Keep plain values and small arrays with every step; return the object that holds them.

        `run = state.vars(best=inf, losses=[])`, then `run.best = x`, `run.losses.append(y)`. The
        values given here hold before the first step; a successor gets those after the last step.

        Errors: UserError at the line that sets a value which is not plain, or with which all values
        together are too large.
        """
        return self.kept.values.name(values, self.kept.see_that_nothing_is_shared)

    def _see_that_tables_learn_right(self, things: list[Any]) -> None:
        scalers = [t for t in things if isinstance(t, torch.amp.GradScaler) and t.is_enabled()]
        if scalers and (self.engine.tables or self.engine.served):
            what = "hf.Embedding" if self.engine.tables else "hf.ParameterServer"
            raise UserError(
                f"a GradScaler scales the loss, and {what} would learn from the scaled gradients; "
                "train without one (bfloat16 needs none)"
            )

    def _name(self, thing: Any) -> str:
        kind = "model" if isinstance(thing, torch.nn.Module) else type(thing).__name__.lower()
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"{kind}{self._counts[kind]}"

    def _add(self, name: str, thing: Any) -> None:
        thing = unwrapped(thing)
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
        self.kept.add(name, HookState(thing) if is_hook_state(thing) else thing)
        if isinstance(thing, torch.nn.Module):
            for ddp in _ddp.find(thing):
                if ddp not in self._ddps:  # A model may be given twice, as a part of another.
                    _ddp.settle(ddp, self.engine)
                    self._ddps.append(ddp)
        elif isinstance(thing, torch.optim.Optimizer):
            thing.register_step_post_hook(self._note_update)
            Attributes(thing, self.kept.others)

    def _note_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.training.has_updated = True
        self.versions.see_update(optimizer)

    def _see_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self.engine.own_use or self.kept.see_that_an_optimizer_is_kept(optimizer):
            return
        if self.engine.in_step and self._strangers.setdefault(optimizer, self.n) != self.n:
            self.engine.seat.say_once(
                f"{type(optimizer).__name__} updates parameters that State was not given: a "
                "replacement begins anew with them, and a void step counts twice. Give it both"
            )

    def _see_module(self, outer: Any, name: str, inner: Any) -> None:
        """Refuse a DistributedDataParallel that is made anew for a model of State."""
        if not isinstance(outer, DistributedDataParallel) or name != "module":
            return
        if isinstance(inner, torch.nn.Module) and self.kept.has_a_parameter_of(inner):
            raise UserError(
                "DistributedDataParallel is made anew for a model that State keeps, which a "
                "replacement would not do again; make it once, before State. To unfreeze "
                "parameters later, leave their requires_grad as it is and give them a learning "
                "rate of 0 until then"
            )

    # ---- Where it is ----------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """The number of steps done, over all epochs. The step under way does not count."""
        return self.progress.n

    @property
    def epoch(self) -> int:
        """The epoch under way, from 0."""
        current = self.training.current_epoch
        return self.progress.position.epoch if current is None else current

    @property
    def batch(self) -> int:
        """The number of batches done in this epoch. The batch under way does not count."""
        at = self.progress.position
        return at.own or at.index - self.training.drawn

    @property
    def replaying(self) -> bool:
        """Whether the step under way is the replay of a void one."""
        return self.training.replaying

    @property
    def stopped(self) -> bool:
        """Whether any rank has called stop(), in a step that is done or after the last step."""
        return self.training.stopped

    def on_commit(self, function: Callable[[int], Any]) -> Callable[[int], Any]:
        """Call `function(n)` after each step n, once. If the process is lost there, never for n."""
        self.training.on_commit.append(function)
        return function

    # ---- Loops ----------------------------------------------------------------------------------

    def epochs(self, n: int, *, start: int = 0) -> Iterator[int]:
        """Yield epoch numbers up to `n` - 1, from the one under way, or from `start` in a new job.

        A successor begins with the epoch of the last step that was done, and runs that epoch's body
        again: what it changes before steps() is then taken back, since State has it already. What
        it changes after steps() stays.
        """
        return epochs(self.training, n, start)

    def steps(self, data: Iterable[_Batch], epochs: int = 1) -> Steps[_Batch]:
        """Yield the batches of `data`; each batch is one step.

        `epochs`: how many passes to make, if there is no loop over state.epochs() around. A step
        ends when the loop asks for the next batch. The batch of a void step is yielded again. After
        a restart, the batches of steps that are done are skipped. The result has the length and the
        attributes of `data`. The order of the data follows from (seed, epoch). A sampler that has
        set_epoch() gets the epoch's number.

        If the loop is left by `break`, `return` or an exception, the step under way is not done,
        and all is as after the step before. stop() ends the loop after the step.

        Errors: UserError if `data` can not tell its position, or gives another item when it is
        asked for the same one again.
        """
        training = self.training
        if training.current_epoch is None and training.turn:
            raise UserError(
                "state.steps(...) was called before, and outside of state.epochs(...) a "
                "replacement could not tell the calls apart. Write `for epoch in state.epochs(3):` "
                "around them; or give one call all epochs: state.steps(loader, epochs=3)"
            )
        if training.current_epoch is not None and epochs != 1:
            raise UserError("within state.epochs(...) each state.steps(loader) is one epoch's")
        first = training.current_epoch or 0
        turn, training.turn = training.turn, training.turn + 1
        training.advise(sys._getframe(1))
        made = passes(training, data, range(first, first + epochs), turn)
        return Steps(data, made, epochs)

    @contextmanager
    def step(self) -> Iterator[State]:
        """Make one step of a loop of your own: `while state.n < total: with state.step(): ...`.

        After the block `n` has grown by one, unless the step was void. A void step has to be made
        again by the loop, so choose the data by `n`. Change what State keeps only in the body. An
        exception in the body passes through; the step is not done, and all is as after the step
        before.
        """
        self.engine.see_that_no_step_is_open("with state.step()")
        self.training.advise(sys._getframe(2))
        with self.training.own_step():
            yield self

    def once(self, function: Callable[_P, _Result], *args: _P.args, **kwargs: _P.kwargs) -> _Result:
        """Call `function` on all ranks; return its result, which a successor gets without a call.

        Use it for an evaluation between epochs, or a checkpoint. If a fault comes meanwhile,
        `function` is called again. It must not change what State keeps, except buffers and
        train()/eval(), which are put back afterwards. Within a step, once() is a plain call.

        Errors: UserError if the result can not be pickled or is too large, or if `function` changed
        what State keeps.
        """
        if self.engine.in_step:
            return function(*args, **kwargs)
        training = self.training
        # A process that has not arrived is where its rank's first process was before any step.
        is_before = not training.arrived and not self.progress.position.own
        name = getattr(function, "__qualname__", "once")
        after = training.turn if training.current_epoch is not None else 0 if is_before else self.n
        key = training.results.key(training.current_epoch, after, name)
        if is_before and not training.results.knows(key):
            raise UserError(
                "state.once(...) is called here before the loop, where the process that this one "
                "replaces did not call it; all processes run one program"
            )
        result: _Result = training.make_once(key, lambda: function(*args, **kwargs))
        return result

    def check(self, loss: Any, at_most: float = math.inf, then: str = "stop") -> None:
        """Let the step under way count only if no rank's loss is bad; call it once it is known.

        Bad is what is NaN, infinite, or greater than `at_most`. At the step's end all is then as
        before it, on all ranks, and the step is made again: a processor or memory may have failed.
        If a loss is bad again, the job ends with a sentence that names step, rank and loss
        (`then="stop"`), or the batch is left out (`then="skip"`): nothing of the step stays, and
        `n` grows by one. Where some bad rank says "stop", the job ends. The body goes on after this
        call, so that exchanges with other ranks are made.

        Errors: UserError outside of a step.
        """
        if not self.engine.in_step:
            raise UserError("state.check(loss) belongs into a step")
        self.training.versions.losses.check(loss, at_most, then)

    def stop(self) -> None:
        """End the loops over steps and epochs on all ranks, after the step or epoch under way."""
        self.progress.wish = True
