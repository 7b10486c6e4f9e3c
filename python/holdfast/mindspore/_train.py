"""Model.train by steps: guard the call of the network, enter the loop where a predecessor left it.

A step is done when its update is; the callbacks of its end come after. So a successor enters the
loop at the last step that was done, gives its outputs from the state, and lets its callbacks run.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Final

from holdfast._errors import UserError
from holdfast.mindspore import _gasp, _pipeline
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._state import State

_PLAIN: Final = (bool, int, float, str, type(None))


class Restart(Exception):  # noqa: N818 - it is no error.
    """The loop of Model.train is to be entered anew."""


def pack(value: Any) -> Any:
    """Make outputs of a network such that they can be pickled."""
    if isinstance(value, (tuple, list)):
        return type(value)(pack(v) for v in value)
    if isinstance(value, dict):
        return {k: pack(v) for k, v in value.items()}
    if hasattr(value, "asnumpy"):
        return _Packed(value.asnumpy().copy(), str(value.dtype))
    return value


class _Packed:
    """A tensor without MindSpore."""

    def __init__(self, array: Any, dtype: str) -> None:
        self.array, self.dtype = array, dtype


def unpack(value: Any) -> Any:
    """Make what pack() made outputs again."""
    if isinstance(value, (tuple, list)):
        return type(value)(unpack(v) for v in value)
    if isinstance(value, dict):
        return {k: unpack(v) for k, v in value.items()}
    if isinstance(value, _Packed):
        import mindspore

        return mindspore.Tensor(value.array, getattr(mindspore, value.dtype.lower()))
    return value


def _loss(value: Any) -> float:
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    if isinstance(value, _Packed) and value.array.size and value.array.dtype.kind == "f":
        return float(value.array.mean())
    return 0.0


class Trainer(threading.local):
    """The trainings of one program; all of one network. A rehearsal has its own: per thread."""

    def __init__(self, engine: Engine) -> None:
        """Nothing is opened yet."""
        self.engine = engine
        self.state: State | None = None
        self.call = 0  # Calls of Model.train that were begun, from 1.
        self.retrying = False  # The same call is entered again, after the step that is done.
        self._network: Any = None

    def open(self, network: Any) -> State:
        """Return the state of a network; opened at the first call."""
        if self.state is None:
            parameters = list(network.get_parameters())
            self.state = State(self.engine, parameters, {"call": 0})
            self._network = network
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


class Run:
    """One call of Model.train."""

    def __init__(
        self, trainer: Trainer, callbacks: list[Any], cb_params: Any, dataset: Any
    ) -> None:
        self._trainer = trainer
        self._callbacks = callbacks
        self._cb_params = cb_params
        self._dataset = dataset
        self._first_batch = 0  # Of the pipeline: where the loop began.
        self._first_step = 0
        self._answer: Any = None  # Outputs of a step that is done already.

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
            return None
        if at["call"] < trainer.call:
            return self._fresh(initial_epoch)
        return self._resume(at)

    def _fresh(self, initial_epoch: int) -> int:
        """Return the first epoch of a training that begins, maybe from a checkpoint."""
        begun = int(self._first_batch // self._dataset.get_dataset_size())
        if initial_epoch or not begun:
            return initial_epoch
        # The dying-gasp document sets the first step and forgets to pass the epoch that it has
        # computed; the data would end before the loop (EOF, tree_adapter.cc:497).
        self._trainer.engine.say_once(
            f"set_init_step({self._first_batch}) without initial_epoch: the first epoch is {begun}"
        )
        self._cb_params.cur_step_num = self._first_step = self._first_batch
        return begun

    def _resume(self, at: dict[str, Any]) -> int:
        from mindspore import dataset

        dataset.config.set_fast_recovery(_pipeline.draws_nothing(self._dataset))
        batch, epoch, done = int(at["batch"]), int(at["epoch"]), int(at["step"])
        self._first_batch, self._first_step = int(at["first_batch"]), int(at["first_step"])
        if self._trainer.retrying:
            batch += 1
            epoch += batch % self._dataset.get_dataset_size() == 0
            self._cb_params.cur_step_num = done
        else:
            self._answer = at["outputs"]
            self._cb_params.cur_step_num = done - 1
        self._trainer.retrying = False
        self._dataset.set_init_step(batch)
        return epoch

    def _attributes(self) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in vars(callback).items() if isinstance(v, _PLAIN)}
            for callback in self._callbacks
        ]

    def _gasp_place(self) -> dict[str, Any] | None:
        for callback in self._callbacks:
            path = getattr(callback, "ckpt_save_path", None)
            if isinstance(path, str):
                return {"path": os.path.abspath(path), "initial_step": callback.initial_step}
        return None

    def _describe(self, outputs: Any) -> dict[str, Any]:
        step = self._cb_params.cur_step_num
        packed = pack(outputs)
        return {
            "call": self._trainer.call,
            "epoch": self._cb_params.cur_epoch_num - 1,
            "step": step,
            "batch": self._first_batch + step - self._first_step - 1,
            "first_batch": self._first_batch,
            "first_step": self._first_step,
            "batch_num": self._cb_params.batch_num,
            "outputs": packed,
            "loss": _loss(packed),
            "callbacks": self._attributes(),
            "gasp": self._gasp_place(),
        }

    def step(self, network: Any, inputs: tuple[Any, ...]) -> Any:
        """Make a step, or give the outputs of one that is done."""
        trainer = self._trainer
        if trainer.engine.rehearsing:
            from holdfast.mindspore import _rehearsal

            _rehearsal.rehearse(trainer.engine, network, inputs)
            raise Restart
        assert trainer.state is not None
        if self._answer is not None:
            answer, self._answer = self._answer, None
            for callback, saved in zip(self._callbacks, trainer.state.objects["callbacks"]):
                vars(callback).update(saved)
            return unpack(answer)
        return trainer.state.step(lambda: network(*inputs), self._describe)


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
    callbacks = list(arguments["list_callback"]._callbacks)
    begun_at = arguments["cb_params"].cur_step_num
    while True:
        if not engine.rehearsing:
            trainer.open(network)
        arguments["cb_params"].cur_step_num = begun_at
        run = Run(trainer, callbacks, arguments["cb_params"], arguments["train_dataset"])
        first = run.enter(arguments.get("initial_epoch", 0))
        if first is None:
            return
        model._train_network = Guard(trainer, network, run)
        try:
            original(model, **{**arguments, "initial_epoch": first})
            return
        except Restart:
            continue
        finally:
            model._train_network = network
