"""Model.train by steps: guard the call of the network, enter the loop where a predecessor was.

A step is done when its update is done; the callbacks for its end are called after that. So a
successor enters the loop at the last step that was done, returns that step's outputs from the
state, and lets the callbacks run.
"""

from __future__ import annotations

import itertools
import os
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from holdfast._errors import UserError
from holdfast._losses import Act
from holdfast.mindspore import _bulk, _callbacks, _pipeline, _random, _rehearsal, _saving
from holdfast.mindspore._between import Held, Rest, around_begins, begins_as_usual
from holdfast.mindspore._data import dumps_outputs
from holdfast.mindspore._trainer import Trainer

_MOST_OUTPUTS: Final = 256 << 10  # Bytes. Each step writes its outputs.


class Restart(Exception):  # noqa: N818 - it is no error.
    """The loop of Model.train has to be entered anew."""


def _loss(value: Any) -> float:
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    if not hasattr(value, "asnumpy") or not value.size or not value.is_floating_point():
        return 0.0
    return float(value.asnumpy().mean())


class Guard:
    """Replaces the network in Model.train's loop."""

    def __init__(self, trainer: Trainer, network: Any, run: Run) -> None:
        self.__dict__.update(_trainer=trainer, _network=network, _run=run)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_network"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_network"], name, value)

    def __call__(self, *inputs: Any) -> Any:
        """Make a step, or answer with the outputs of one that was done."""
        run: Run = self.__dict__["_run"]
        return run.step(self.__dict__["_network"], inputs)


def guarded(network: Any) -> Any:
    """Return the network that a Guard replaces; `network` itself if it is no Guard."""
    return network.__dict__["_network"] if type(network) is Guard else network


class Run:
    """One call of Model.train."""

    def __init__(self, trainer: Trainer, callbacks: list[Any], arguments: dict[str, Any]) -> None:
        """`arguments`: those of Model._train_process."""
        self._trainer = trainer
        self._callbacks = callbacks
        self._cb_params = arguments["cb_params"]
        self._dataset = arguments["train_dataset"]
        self._size: int = self._dataset.get_dataset_size()  # Batches of an epoch.
        self.epochs: int = arguments["epoch"]  # Where the loop ends.
        self._first_batch = 0  # The batch of the pipeline with which the loop began.
        self._first_step = 0
        self._answer: Any = None  # Outputs of a step that was done already.
        self._skips: bool | None = None  # The user's setting, while this run has changed it.
        self._looks = True  # Parameters may have changed since the last step.
        self._resumed = False
        self._entered = 0, 0, 0  # First epoch, batch and step, as the program gave them.
        self._parts = _pipeline.Parts(self._dataset)
        self._meddles = not all(map(_callbacks.leaves_parameters, callbacks))

    def enter(self, initial_epoch: int) -> int | None:
        """Prepare the loop for where the state is; return its first epoch. None: call is done."""
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
            if trainer.retrying and trainer.rest is not None:  # MindSpore has guessed these values.
                initial_epoch, self._first_batch, self._first_step = trainer.rest.entered
                self._dataset.set_init_step(self._first_batch)
                self._cb_params.cur_step_num = self._first_step
            trainer.retrying = False
            self._entered = initial_epoch, self._first_batch, self._first_step
            return self._fresh(initial_epoch)
        return self._resume(at)

    def before_begin(self, place: int) -> None:
        """Keep everything as it is before the first callback that begins something after a step."""
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
        """Take back what callbacks changed, if they have been called for this begin before."""
        trainer = self._trainer
        if trainer.engine.rehearsing:
            return
        assert trainer.state is not None
        if trainer.rest is not None and place < trainer.rest.begin:
            trainer.rest.put_back(trainer.state)
        elif place == 0 and self._resumed and trainer.rest is None:
            trainer.state.restore()  # The state holds what this begin changes.

    def _fresh(self, initial_epoch: int) -> int:
        """Return the first epoch of a training that begins, perhaps from a checkpoint."""
        trainer = self._trainer
        if trainer.drawn[0] == trainer.call:  # A repair enters the loop again.
            _random.give_back(trainer.drawn[1])
            self._parts.put_back(trainer.drawn[2])
        trainer.drawn = trainer.call, _random.states(), self._parts.now()
        begun = int(self._first_batch // self._size)
        # The dying-gasp document sets the first step and forgets to pass the epoch that it has
        # computed, so the data would end before the loop (EOF, tree_adapter.cc:497).
        forgotten = not initial_epoch and begun > 0
        if forgotten:
            trainer.engine.say_once(
                f"set_init_step({self._first_batch}) without initial_epoch: the first epoch is "
                f"{begun}"
            )
        first = initial_epoch or begun
        # MindSpore counts steps from 1, even if it begins from a checkpoint. So the last checkpoint
        # of such a training would have too small a step, and a training from it would repeat data.
        saving = [c for c in self._callbacks if hasattr(c, "ckpt_save_path")]
        added = any(c.initial_step for c in saving)  # The program itself adds the steps before.
        if not added and (saving or forgotten):
            done = first * self._size + self._first_batch % self._size
            self._cb_params.cur_step_num = self._first_step = done
        return first

    def _resume(self, at: dict[str, Any]) -> int:
        from mindspore import dataset

        self._resumed = True
        now, was = self._cb_params.batch_num, at["batch_num"]
        if now != was and self._trainer.engine.rank == 0:
            self._trainer.engine.say_once(
                f"an epoch has {now:,} batches and had {was:,} when it began: the rest of it is "
                "not what it would have been"
            )
        self._trainer.drawn = self._trainer.call, *at["drawn"]
        # The pipeline draws again what it drew from the start on.
        _random.give_back(self._trainer.drawn[1])
        self._parts.put_back(self._trainer.drawn[2])
        self._skips = dataset.config.get_fast_recovery()
        dataset.config.set_fast_recovery(_pipeline.draws_nothing(self._dataset))
        batch, epoch, done = int(at["batch"]), int(at["epoch"]), int(at["step"])
        self._first_batch, self._first_step = int(at["first_batch"]), int(at["first_step"])
        # A program that now begins from its last checkpoint asks for fewer steps.
        self.epochs, self._cb_params.epoch_num = at["epochs"]
        if self._trainer.retrying and self._trainer.rest is not None:
            batch += 1
            epoch += batch % self._size == 0
            self._cb_params.cur_step_num = done
        else:
            assert self._trainer.state is not None
            self._trainer.state.restore()  # The program may have loaded other values.
            self._answer = at["outputs"]
            self._cb_params.cur_step_num = done - 1
        self._trainer.retrying = False
        self._dataset.set_init_step(batch)
        return epoch

    def begin_as_usual(self) -> None:
        """Set the data set back, so that its next reader begins as without a fault."""
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
        _saving.finish()  # Nobody would finish the files of a process that dies.
        step = self._cb_params.cur_step_num
        packed, lacks = dumps_outputs(outputs, _MOST_OUTPUTS)
        if lacks:
            self._trainer.engine.say_once(
                f"a step's outputs have more than {_MOST_OUTPUTS >> 10} KiB together, so not all "
                "are kept: in a process that replaces another, callbacks see zeros in place of "
                "the large ones for one step"
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
            "loss": _loss(outputs),
            "callbacks": self._attributes(),
            "cells": self._trainer.cells.changed() if self._trainer.cells else {},
            "former": self._trainer.former.packed,
            "drawn": self._trainer.drawn[1:],
            "evaluated": self._trainer.evaluated.packed,
            "gasp": self._gasp_place(),
        }

    def step(self, network: Any, inputs: tuple[Any, ...]) -> Any:
        """Make a step and return its outputs; at first, those of a step that was done before."""
        trainer = self._trainer
        if trainer.engine.rehearsing:
            dumps_outputs(network(*inputs), _MOST_OUTPUTS)  # This waits for the outputs.
            raise Restart
        assert trainer.state is not None and trainer.cells is not None
        self.begin_as_usual()
        if self._answer is not None:
            answer, self._answer = self._answer, None
            trainer.state.restore()  # The callbacks have begun this step again; undo that.
            for callback, saved in zip(self._callbacks, trainer.state.objects["callbacks"]):
                _callbacks.give_back(callback, saved)
            trainer.cells.put_changed(trainer.state.objects["cells"])
            return pickle.loads(answer)
        looks, self._looks = self._looks, self._meddles
        cells, before, tries = trainer.cells, trainer.cells.now(), itertools.count()

        def compute() -> Any:
            if next(tries):  # The first try was void.
                cells.put(before)
            sampled.batch(inputs)
            return network(*inputs)

        sampled = trainer.state.sampled
        sampled.callbacks = self._callbacks
        batch = self._first_batch + self._cb_params.cur_step_num - self._first_step - 1
        is_first = self._size > 1 and batch % self._size == 0
        given = None

        def describe(outputs: Any) -> dict[str, Any]:
            nonlocal given
            given = self._checked(outputs, partial(cells.put, before))
            return self._describe(given)

        trainer.state.step(compute, describe, looks, is_first)
        if _bulk.current is not None:
            _bulk.current.sweep(trainer.former.files)
        return given

    def _checked(self, outputs: Any, put_cells_back: Callable[[], None]) -> Any:
        """Return what callbacks get as the outputs of the step under way.

        If a loss is bad, nothing of the step stays. MarkedError: it is made again, or is void.
        """
        from holdfast.mindspore._check_loss import CheckLoss  # It needs MindSpore.

        checks = [c for c in self._callbacks if isinstance(c, CheckLoss)]
        if not checks:
            return outputs
        trainer, losses = self._trainer, self._trainer.losses
        assert trainer.state is not None
        losses.begin()
        for check in checks:
            check.look(losses, _loss(outputs))
        trainer.state.hear(losses, trainer.state.n + 1)
        if losses.act is not Act.SKIP:
            return outputs
        trainer.state.restore()
        put_cells_back()
        former = trainer.state.objects.get("outputs")
        return outputs if former is None else pickle.loads(former)


def train_process(
    trainer: Trainer, original: Callable[..., Any], model: Any, *given: Any, **named: Any
) -> None:
    """Replace Model._train_process."""
    names = ("epoch", "train_dataset", "list_callback", "cb_params", "initial_epoch", "valid_infos")
    arguments = {**dict(zip(names, given)), **named}
    engine, network = trainer.engine, model._train_network
    if not list(network.get_parameters()):
        original(model, **arguments)  # Nothing to keep.
        return
    if not trainer.retrying:
        trainer.call, engine.trains = trainer.call + 1, True
    trainer.seed.give(arguments["train_dataset"], engine.rank, trainer.call)
    batches = arguments["cb_params"].batch_num
    if batches != arguments["train_dataset"].get_dataset_size():
        engine.say_once(
            "sink_size has no effect on a CPU: each batch is a step. MindSpore tells callbacks all "
            f"the same that an epoch has {batches}"
        )
    manager = arguments["list_callback"]
    callbacks = list(manager._callbacks)
    if engine.rehearses:
        _callbacks.keep_from_writing(callbacks)
    if _bulk.current is not None:
        _bulk.current.begin()
    begun_at = arguments["cb_params"].cur_step_num
    drawn = _random.everything()
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
            trainer.former.keep(trainer.call, callbacks, engine.say_once)
            if trainer.state is not None:
                trainer.state.compare(at_end=True)
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
            trainer.seed.take_back()
        _rehearsal.wait(engine, drawn)
        parts.put_back(held)
