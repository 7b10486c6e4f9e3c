"""MindSpore's fault tolerance (MS_ENABLE_TFT): shims for its names, and the Actor behind them.

The callback TrainFaultTolerance and its handlers are MindSpore's own, unmodified. They drive
mindio_ttp, which asks the Actor here.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import os
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from holdfast.mindspore._trainer import Trainer

_PATH: Final = "./ttp_checkpoints/"


class Actor:
    """Does what mindio_ttp asks for."""

    def __init__(self, trainer: Trainer) -> None:
        """Act on the trainer's state."""
        self._trainer = trainer

    def repair(self) -> bool:
        """Bring parameters and optimizer to the last step, from this rank's own arena."""
        # False if other ranks may have gone on with this rank's data: a new process is needed then.
        return self._trainer.retry()

    def can_repair(self) -> bool:
        """Return whether repair() would succeed."""
        return self._trainer.can_retry()

    def step(self) -> int:
        """Return the last step of this call of Model.train."""
        trainer = self._trainer
        objects = {} if trainer.state is None else trainer.state.objects
        return int(objects.get("step", 0)) if objects.get("call") == trainer.call else 0

    def restarted(self) -> bool:
        """Return False, since with True MindSpore on CPU crashes in its first graph."""
        return False


class _Device:
    """MindSpore's context, except that device_target is Ascend."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def get_context(self, name: str) -> Any:
        """Return an entry of the context."""
        return "Ascend" if name == "device_target" else self._real.get_context(name)


def apply(trainer: Trainer) -> None:
    """Apply the shims of fault tolerance."""
    from mindio_ttp._registry import registry

    registry.actor = Actor(trainer)
    # utils.py:310 converts the port to a number without asking whether it is set, and a document's
    # `export MS_TFT_IP = ...` sets nothing. Neither is used here.
    os.environ.setdefault("MS_TFT_IP", "127.0.0.1")
    os.environ.setdefault("MS_TFT_PORT", "30051")
    _device_checks()
    _callback()
    _optimizer()
    _document_names()
    _document_model(trainer.engine.say_once)


def _device_checks() -> None:
    # tft_wrapper.py:77, utils.py:283 and _train_fault_tolerance.py:787 refuse every device but
    # Ascend, although only the operators below would not run elsewhere.
    for name in ("nn.optim.tft_wrapper", "utils.utils", "train.callback._train_fault_tolerance"):
        module: Any = importlib.import_module(f"mindspore.{name}")
        module.context = _Device(module.context)


def _callback() -> None:
    import mindspore as ms

    module: Any = sys.modules["mindspore.train.callback._train_fault_tolerance"]
    kind = module.TrainFaultTolerance
    usual_init = kind.__init__

    def init(self: Any, ckpt_save_path: Any = None, **named: Any) -> None:
        # A document calls it without a path, which 2.10 refuses (_train_fault_tolerance.py:663).
        if ckpt_save_path is None and "ckpt_save_fn" not in named:
            ckpt_save_path = _PATH
        # With ARF, init() must have been called before (line 782), but no document does so.
        if module._tft_handler.get_tft() is None:
            module._tft_handler.init(config=None)
        usual_init(self, ckpt_save_path, **named)

    def end_update(self: Any, cb_params: Any) -> None:
        # The usual function reads a flag (line 962) that is not there: an update is whole or void.
        self.global_step = self._get_optim(cb_params).global_step.clone()
        self.tft.tft_end_updating_os(self.cur_step_num + self.initial_step)

    class TFTRegister(kind):  # type: ignore[misc, valid-type]
        """The callback's name until 2.5: TFTRegister(ctrl_rank_id, ctrl_ip, ctrl_port, path)."""

        def __init__(self, ctrl_rank_id: int, ctrl_ip: str, ctrl_port: int, path: str) -> None:
            super().__init__(path)

    kind.__init__ = init
    if hasattr(kind, "_end_update_report"):
        kind._end_update_report = end_update
    else:  # 2.7 sets the flag of the optimizer wrapper itself, at the end of each step (line 550).
        _without_flag(kind)
    kind._is_params_consistent = lambda self: True
    # "Reset parameters is not supported" on CPU (device_context.h:326); void steps leave no
    # accumulated gradients.
    module.reset_params = lambda parameters: 0
    # TensorReport has no kernel on CPU, nor has an int32 AllReduce (cpu_device_context.cc:469).
    kind.get_optimizer_wrapper = classmethod(lambda cls, origin: origin)
    places: list[Any] = [ms.train, module, sys.modules["mindspore.train.callback"]]
    for place in places:
        place.TFTRegister = TFTRegister


def _without_flag(kind: Any) -> None:
    """Let 2.7's callback set a flag that nobody reads."""
    usual = kind.on_train_step_end

    def on_train_step_end(self: Any, run_context: Any) -> None:
        self.assign = lambda flag, one: None
        parameters = run_context.original_args()
        for owner in (parameters, parameters.network):
            if getattr(owner, "optimizer", None) is not None:
                vars(owner.optimizer)["tft_g_one_flag"] = None  # No parameter, so none is saved.
        usual(self, run_context)

    kind.on_train_step_end = on_train_step_end


def _optimizer() -> None:
    from mindspore import nn
    from mindspore.nn.optim import tft_wrapper

    class OptTFTWrapper:
        """Returns the optimizer. The real one reads `cache_enable`, which no optimizer has."""

        def __new__(cls, opt: Any, **named: Any) -> Any:
            """Check the optimizer as the real class does."""
            if not isinstance(opt, nn.Optimizer):
                raise TypeError(
                    "For 'OptTFTWrapper', the argument 'opt' must be Optimizer type, but got "
                    f"{type(opt)}."
                )
            return opt

    for place in (nn, nn.optim, tft_wrapper):
        place.OptTFTWrapper = OptTFTWrapper


def _document_names() -> None:
    # The dying-gasp document's script uses these two without importing them, in the branch that
    # resumes. That is a NameError with every version.
    from mindspore import context
    from mindspore.train.serialization import get_ckpt_path_with_strategy

    for name, thing in (
        ("context", context),
        ("get_ckpt_path_with_strategy", get_ckpt_path_with_strategy),
    ):
        if not hasattr(builtins, name):
            setattr(builtins, name, thing)


def _document_model(say_once: Callable[[str], None]) -> None:
    # The same document makes `loss_fn` but leaves it out of Model(...). So its network of one input
    # is called with image and label, which the graph compiler refuses with every version.
    import mindspore as ms

    usual, usual_train = ms.Model.__init__, ms.Model.train
    left_out: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def init(
        self: Any,
        network: Any,
        loss_fn: Any = None,
        optimizer: Any = None,
        *more: Any,
        **named: Any,
    ) -> None:
        found = vars(sys.modules["__main__"]).get("loss_fn")
        # Without an optimizer the network is not for training.
        trains = loss_fn is None and optimizer is not None and isinstance(found, ms.nn.Cell)
        if trains and len(inspect.signature(network.construct).parameters) == 1:
            left_out[self] = found
        usual(self, network, loss_fn, optimizer, *more, **named)

    def train(self: Any, epoch: int, train_dataset: Any, *more: Any, **named: Any) -> Any:
        # A network of one input that contains its loss gets one column.
        loss_fn = left_out.pop(self, None)
        if loss_fn is not None and len(train_dataset.get_col_names()) == 2:
            say_once(
                "Model(...) is given no loss_fn, and its network takes one input of the data's "
                "two; the program's own `loss_fn` is used"
            )
            self._loss_fn = loss_fn
            self._train_network = self._build_train_network()
        return usual_train(self, epoch, train_dataset, *more, **named)

    ms.Model.__init__, ms.Model.train = init, train
