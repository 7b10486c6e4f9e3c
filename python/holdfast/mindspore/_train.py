"""Model.train by steps: guard the call of the network, enter the loop where a predecessor left it.

A step is done when its update is; the callbacks of its end come after. So a successor enters the
loop at the last step that was done, gives its outputs from the state, and lets its callbacks run.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from holdfast._errors import UserError
from holdfast.mindspore import (
    _bulk,
    _callbacks,
    _gasp,
    _pipeline,
    _random,
    _rehearsal,
    _saving,
    _switches,
)
from holdfast.mindspore._between import Held, Rest, around_begins, begins_as_usual
from holdfast.mindspore._cells import Cells, hidden_parameters
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._evaluated import Evaluated
from holdfast.mindspore._former import Former
from holdfast.mindspore._outputs import Packed, pack, unpack, within
from holdfast.mindspore._reach import Reach
from holdfast.mindspore._state import State

_MOST_OUTPUTS: Final = 256 << 10  # Bytes of what a step returns: it is written at each.
_UNSEEDED: Final = 5489  # mindspore.dataset's "no seed was set".


class Restart(Exception):  # noqa: N818 - it is no error.
    """The loop of Model.train is to be entered anew."""


def _loss(value: Any) -> float:
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    if isinstance(value, Packed) and value.array.size and value.array.dtype.kind == "f":
        return float(value.array.mean())
    return 0.0


def _draws(network: Any) -> bool:
    """Return whether a network has dropout."""
    cells = (cell for _, cell in network.cells_and_names())
    return any(type(c).__name__.startswith("Dropout") and getattr(c, "p", 1) for c in cells)


class Trainer(threading.local):
    """The trainings of one program; all of one network. A rehearsal has its own: per thread."""

    def __init__(self, engine: Engine) -> None:
        """Nothing is opened yet."""
        self.engine = engine
        self.state: State | None = None
        self.call = 0  # Calls of Model.train that were begun, from 1.
        self.training = False  # Model.train is under way.
        self.retrying = False  # The same call is entered again, after a repair.
        self.evaluated = Evaluated()
        # In which call; where random generators stood, and parts of the data, at its start.
        self.drawn = 0, b"", b""
        self._seed = _UNSEEDED  # Of the data, chosen for want of one.
        switches = _switches.read(os.environ.get(_switches.VARIABLE, "")).on
        self.repairs = not {"UCE", "HCCE", "ARF"}.isdisjoint(switches)
        self._rest: Rest | None = None
        self._network: Any = None
        self.cells: Cells | None = None  # Of it.
        self._others: list[Any] = []  # Parameters that callbacks hold, or objects within cells.
        self.former = Former()
        self.reach = Reach()  # What callbacks use without holding it.

    def passes(self) -> bool:
        """Return whether the program is between two calls that were done before."""
        if self.training or self.state is None:
            return False
        return self.call < int(self.state.objects["call"])

    def keep(self, callbacks: list[Any]) -> None:
        """Keep what callbacks of a call that has ended hold."""
        self.former.keep(self.call, callbacks, self.engine.say_once)

    def open(self, network: Any, callbacks: list[Any]) -> State:
        """Return the state of a network, and of averages of it; opened at the first call."""
        if self.state is None:
            parameters = list(network.get_parameters())
            hidden = hidden_parameters(network)
            known = [*parameters, *hidden]
            self._others = [*hidden, *_callbacks.parameters(callbacks, known)]
            self.state = State(self.engine, parameters, {"call": 0}, self._others)
            self.evaluated.load(self.state.objects.get("evaluated", b""))
            self.former.load(self.state.objects.get("former", b""))
            self._network, self.cells = network, Cells(network, self.engine.say_once)
            if self.engine.place.directory:
                folder = Path(self.engine.place.directory)
                _bulk.current = _bulk.Bulk(folder, self.engine.rank, [*known, *self._others])
            if self.engine.restarted and _draws(network):
                self.engine.say_once(
                    "the network has dropout, whose masks begin anew in this process, which takes "
                    "another's place: training goes on, but not with the bits of one without a "
                    "fault"
                )
            state = self.state
            if self.engine.gasps:
                _gasp.warm_up(self.engine.place)
            state.on_helper = lambda saves: _gasp.gasp(self.engine, state.session, saves)
        elif network is not self._network:
            mine = {id(p) for p in self._network.get_parameters()}
            if {id(p) for p in network.get_parameters()} != mine:
                raise UserError(
                    "a job keeps the state of one network with one optimizer; train a second one "
                    "in a job of its own"
                )
        return self.state

    def seed(self) -> None:
        """Give the data a seed if the program does not: a successor has to see the same order."""
        from mindspore import dataset

        if dataset.config.get_seed() in (_UNSEEDED, self._seed):
            self._seed = 20_000 + self.engine.rank + 1000 * self.call  # Each call has its own.
            _random.seed_data(self._seed)

    def evaluate(self, make: Callable[[], Any]) -> Any:
        """Return what Model.eval returns; in a call that is passed, what it has returned there."""
        state, say_once = self.state, self.engine.say_once
        if self.training or state is None:
            return make()
        place = self.evaluated.next(self.call)
        if self.call >= state.objects["call"]:
            result = make()
            if why := self.evaluated.keep(place, result):
                say_once(
                    f"what Model.eval has returned {why}, so a process that replaces another "
                    "evaluates with later weights there, and may decide otherwise by it"
                )
            return result
        if self.evaluated.has(place):
            return self.evaluated.get(place)
        say_once(
            f"Model.eval after call {self.call} of Model.train, which was done before, evaluates "
            "with later weights: what it has returned then was not kept"
        )
        return make()

    # ---- A repair in the process -----------------------------------------------------------------

    @property
    def rest(self) -> Rest | None:
        """How things were after the last step; None if not all callbacks have heard of it."""
        rest, state = self._rest, self.state
        if rest is None or state is None or (rest.call, rest.version) != (self.call, state.n):
            return None
        return rest

    @rest.setter
    def rest(self, rest: Rest) -> None:
        self._rest = rest

    def can_retry(self) -> bool:
        """Return whether the last step can be gone back to in this process."""
        state = self.state
        return state is not None and not state.under_way and bool(state.n or self.rest)

    def retry(self) -> bool:
        """Bring all to the last step, if that is possible; the loop is about to be entered."""
        if not self.can_retry():
            return False
        assert self.state is not None
        if self.rest is not None:
            self.rest.put_back(self.state)
        else:
            self.state.go_back({})
        self.retrying = True
        return True

    def warn(self, callbacks: list[Any]) -> None:
        """Say which parameters are not kept."""
        if _bulk.current is not None:
            return
        known = [*self._network.get_parameters(), *self._others]
        missed = _callbacks.parameters(callbacks, known)
        if missed:
            self.engine.say_once(
                f"a callback has got parameters (such as '{missed[0].name}') since the first "
                "Model.train began; they are not kept, so a process that replaces another has "
                "others: make them in the callback's __init__"
            )


class Guard:
    """Stands for the network in Model.train's loop."""

    def __init__(self, trainer: Trainer, network: Any, run: Run) -> None:
        self.__dict__.update(_trainer=trainer, _network=network, _run=run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_network"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_network"], name, value)

    def __call__(self, *inputs: Any) -> Any:
        """Make a step."""
        run: Run = self.__dict__["_run"]
        return run.step(self.__dict__["_network"], inputs)


def guarded(network: Any) -> Any:
    """Return the network for which a Guard stands, or what is given."""
    return network.__dict__["_network"] if type(network) is Guard else network


class Run:
    """One call of Model.train."""

    def __init__(self, trainer: Trainer, callbacks: list[Any], arguments: dict[str, Any]) -> None:
        """`arguments`: of Model._train_process."""
        self._trainer = trainer
        self._callbacks = callbacks
        self._cb_params = arguments["cb_params"]
        self._dataset = arguments["train_dataset"]
        self.epochs: int = arguments["epoch"]  # Where the loop ends.
        self._first_batch = 0  # Of the pipeline: where the loop began.
        self._first_step = 0
        self._answer: Any = None  # Outputs of a step that is done already.
        self._skips: bool | None = None  # The pipeline was told to skip; fast_recovery before.
        self._looks = True  # Somebody may have changed parameters since the last step.
        self._resumed = False
        self._entered = 0, 0, 0  # First epoch, batch and step, as the program has them.
        self._parts = _pipeline.Parts(self._dataset)
        self._meddles = not all(map(_callbacks.leaves_parameters, callbacks))

    def enter(self, initial_epoch: int) -> int | None:
        """Prepare the loop for where the state stands; return its first epoch. None: was done."""
        trainer = self._trainer
        engine = trainer.engine
        self._first_batch = self._dataset.get_init_step()
        self._first_step = self._cb_params.cur_step_num
        if engine.rehearsing:
            return self._fresh(initial_epoch)
        assert trainer.state is not None
        at = trainer.state.objects
        if at["call"] > trainer.call:
            trainer.former.give_back(trainer.call, self._callbacks)
            return None
        if at["call"] < trainer.call:
            if trainer.retrying and trainer.rest is not None:  # MindSpore has set what it guesses.
                initial_epoch, self._first_batch, self._first_step = trainer.rest.entered
                self._dataset.set_init_step(self._first_batch)
                self._cb_params.cur_step_num = self._first_step
            trainer.retrying = False
            self._entered = initial_epoch, self._first_batch, self._first_step
            return self._fresh(initial_epoch)
        return self._resume(at)

    def before_begin(self, place: int) -> None:
        """Remember how all is, before the first callback begins anything after a step."""
        trainer = self._trainer
        if trainer.engine.rehearsing or not trainer.repairs or self._answer is not None:
            return
        if trainer.rest is None:
            assert trainer.state is not None and trainer.cells is not None
            changes = trainer.state.changes() if self._looks or self._meddles else {}
            pairs = zip(self._callbacks, self._attributes())
            held = [Held(*pair) for pair in pairs if not _callbacks.repairs(pair[0])]
            at = trainer.call, trainer.state.n
            cells = partial(trainer.cells.put, trainer.cells.now())
            trainer.rest = Rest(*at, place, changes, held, self._entered, cells)

    def after_begin(self, place: int) -> None:
        """Drop what a begin has changed that was made before already."""
        trainer = self._trainer
        if trainer.engine.rehearsing:
            return
        assert trainer.state is not None
        if trainer.rest is not None and place < trainer.rest.begin:
            trainer.rest.put_back(trainer.state)
        elif place == 0 and self._resumed and trainer.rest is None:
            trainer.state.restore()  # The loop is entered later than at its begin: state has it.

    def _fresh(self, initial_epoch: int) -> int:
        """Return the first epoch of a training that begins, maybe from a checkpoint."""
        trainer = self._trainer
        if trainer.drawn[0] == trainer.call:  # It is entered again.
            _random.give_back(trainer.drawn[1])
            self._parts.put_back(trainer.drawn[2])
        trainer.drawn = trainer.call, _random.states(), self._parts.now()
        begun = int(self._first_batch // self._dataset.get_dataset_size())
        if initial_epoch or not (begun or (self._first_batch and self._counts_on())):
            return initial_epoch
        # The dying-gasp document sets the first step and forgets to pass the epoch that it has
        # computed; the data would end before the loop (EOF, tree_adapter.cc:497). MindSpore counts
        # steps from 1 again; a second last checkpoint would be of too small a step, and what is
        # trained from it would see data again.
        if begun:
            trainer.engine.say_once(
                f"set_init_step({self._first_batch}) without initial_epoch: the first epoch is "
                f"{begun}"
            )
        self._cb_params.cur_step_num = self._first_step = self._first_batch
        return begun

    def _counts_on(self) -> bool:
        """Return whether a last checkpoint needs the step, and the program does not add it."""
        return any(hasattr(c, "ckpt_save_path") and not c.initial_step for c in self._callbacks)

    def _resume(self, at: dict[str, Any]) -> int:
        from mindspore import dataset

        self._resumed = True
        self._trainer.drawn = self._trainer.call, *at["drawn"]
        # Whoever makes the data draws from the start again.
        _random.give_back(self._trainer.drawn[1])
        self._parts.put_back(self._trainer.drawn[2])
        self._skips = dataset.config.get_fast_recovery()
        dataset.config.set_fast_recovery(_pipeline.draws_nothing(self._dataset))
        batch, epoch, done = int(at["batch"]), int(at["epoch"]), int(at["step"])
        self._first_batch, self._first_step = int(at["first_batch"]), int(at["first_step"])
        # A program that begins from its last checkpoint asks for fewer now.
        self.epochs, self._cb_params.epoch_num = at["epochs"]
        if self._trainer.retrying and self._trainer.rest is not None:
            batch += 1
            epoch += batch % self._dataset.get_dataset_size() == 0
            self._cb_params.cur_step_num = done
        else:
            assert self._trainer.state is not None
            self._trainer.state.restore()  # The program may have loaded others before this call.
            self._answer = at["outputs"]
            self._cb_params.cur_step_num = done - 1
        self._trainer.retrying = False
        self._dataset.set_init_step(batch)
        return epoch

    def begin_as_usual(self) -> None:
        """Let whoever reads the data next begin where it would have without a fault."""
        if self._skips is not None:
            from mindspore import dataset

            dataset.config.set_fast_recovery(self._skips)
            self._dataset.set_init_step(self._first_batch)
            self._skips = None

    def _attributes(self) -> list[dict[str, Any]]:
        return _callbacks.all_attributes(self._callbacks, self._trainer.engine.say_once)

    def _gasp_place(self) -> dict[str, Any] | None:
        for callback in self._callbacks:
            path = getattr(callback, "ckpt_save_path", None)
            if isinstance(path, str):
                return {"path": os.path.abspath(path), "initial_step": callback.initial_step}
        return None

    def _describe(self, outputs: Any) -> dict[str, Any]:
        _saving.finish()  # Else nobody would write what a process that dies was writing yet.
        step = self._cb_params.cur_step_num
        whole = pack(outputs)
        packed, size = within(whole, _MOST_OUTPUTS)
        if size > _MOST_OUTPUTS:
            self._trainer.engine.say_once(
                f"a step's outputs have more than {_MOST_OUTPUTS >> 10} KiB together, so the "
                "largest are not kept, as many as it takes for the others to be within that: in a "
                "process that replaces another, callbacks see zeros in their place for one step"
            )
        return {
            "call": self._trainer.call,
            "epoch": self._cb_params.cur_epoch_num - 1,
            "step": step,
            "batch": self._first_batch + step - self._first_step - 1,
            "first_batch": self._first_batch,
            "first_step": self._first_step,
            "epochs": (self.epochs, self._cb_params.epoch_num),
            "batch_num": self._cb_params.batch_num,
            "outputs": packed,
            "loss": _loss(whole),
            "callbacks": self._attributes(),
            "cells": self._trainer.cells.changed() if self._trainer.cells else {},
            "former": self._trainer.former.packed,
            "drawn": self._trainer.drawn[1:],
            "evaluated": self._trainer.evaluated.packed,
            "gasp": self._gasp_place(),
        }

    def step(self, network: Any, inputs: tuple[Any, ...]) -> Any:
        """Make a step, or give the outputs of one that is done."""
        trainer = self._trainer
        if trainer.engine.rehearsing:
            _rehearsal.rehearse(network, inputs)
            raise Restart
        assert trainer.state is not None and trainer.cells is not None
        self.begin_as_usual()
        if self._answer is not None:
            answer, self._answer = self._answer, None
            trainer.state.restore()  # What the begin of this step has changed is in it already.
            for callback, saved in zip(self._callbacks, trainer.state.objects["callbacks"]):
                _callbacks.give_back(callback, saved)
            trainer.cells.put_changed(trainer.state.objects["cells"])
            return unpack(answer)
        if self._looks and self._meddles:
            trainer.warn(self._callbacks)
        looks, self._looks = self._looks, self._meddles
        cells, before, tries = trainer.cells, trainer.cells.now(), itertools.count()

        def compute() -> Any:
            if next(tries):  # The one before was void.
                cells.put(before)
            return network(*inputs)

        outputs = trainer.state.step(compute, self._describe, looks)
        if _bulk.current is not None:
            _bulk.current.sweep(trainer.former.files)
        return outputs


def train_process(
    trainer: Trainer, original: Callable[..., Any], model: Any, *given: Any, **named: Any
) -> None:
    """Stand for Model._train_process."""
    names = ("epoch", "train_dataset", "list_callback", "cb_params", "initial_epoch", "valid_infos")
    arguments = {**dict(zip(names, given)), **named}
    engine, network = trainer.engine, model._train_network
    if not list(network.get_parameters()):
        original(model, **arguments)  # Nothing to keep.
        return
    if not trainer.retrying:
        trainer.call += 1
    trainer.seed()
    manager = arguments["list_callback"]
    callbacks = [*manager._callbacks, trainer.reach]
    trainer.reach.look(trainer.call, manager._callbacks)
    if _bulk.current is not None:
        _bulk.current.begin()
    begun_at = arguments["cb_params"].cur_step_num
    randomness = _random.Randomness()
    parts = _pipeline.Parts(arguments["train_dataset"])
    held = parts.now() if engine.rehearsing else b""
    scratch = _rehearsal.Scratch(network, callbacks) if engine.rehearsing else None
    while True:
        if not engine.rehearsing:
            trainer.open(network, callbacks)
        arguments["cb_params"].cur_step_num = begun_at
        run = Run(trainer, callbacks, arguments)
        first = run.enter(arguments.get("initial_epoch", 0))
        if first is None:
            return
        model._train_network = Guard(trainer, network, run)
        around_begins(manager, run.before_begin, run.after_begin)
        trainer.training = True
        try:
            original(model, **{**arguments, "epoch": run.epochs, "initial_epoch": first})
            trainer.keep(callbacks)
            return
        except Restart:
            assert scratch is not None
            scratch.put_back()
            scratch = None
        except RuntimeError as error:
            lacks = re.search(r"Unsupported op \[(\w+)\] on CPU", str(error))
            if lacks is None:
                raise
            raise UserError(
                f"the network uses the operator {lacks[1]}, which MindSpore has not on the CPU, "
                "where this job runs; use operators that it has there"
            ) from None
        finally:
            trainer.training = False
            model._train_network = network
            begins_as_usual(manager)
            run.begin_as_usual()
        _rehearsal.wait(engine, randomness)
        parts.put_back(held)
