"""Hugging Face's Trainer, with its own loop, callbacks, logs, evaluations and saves.

    import holdfast.torch as hf
    from holdfast.torch.transformers import hold

    hf.init()                                  # before TrainingArguments(...)
    trainer = hold(Trainer(model, args, train_dataset=..., callbacks=[...]))
    trainer.train()

See docs/trainers.md. The names of transformers that are used and are not documented there, all of
Trainer: _init_training_state, _prepare_for_training, _run_epoch, get_batch_samples,
_get_num_items_in_batch, _maybe_log_save_evaluate, _save_checkpoint, _load_rng_state and
callback_handler.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, Final, TypeVar

from holdfast._errors import UserError
from holdfast.torch._attributes import Attributes, Unseen, the
from holdfast.torch._driven import Driven
from holdfast.torch._groups import Groups
from holdfast.torch._held import say_what_is_lost, see_version
from holdfast.torch._state import State

TRIED: Final = ("5.24",)
_OURS: Final = (  # Methods of Trainer that are called, or wrapped: a subclass must have them as is.
    *("train", "_inner_training_loop", "_init_training_state", "_prepare_for_training"),
    *("_run_epoch", "get_batch_samples", "_maybe_log_save_evaluate", "_load_rng_state"),
)
# What the Trainer calls: objects of the program may count there.
_USED: Final = ("compute_metrics", "preprocess_logits_for_metrics", "compute_loss_func")
_Trainer = TypeVar("_Trainer")


def hold(trainer: _Trainer, **named: Any) -> _Trainer:
    """Keep a Trainer's training; return the Trainer. Call this before trainer.train().

    `named`: what the callbacks change besides their own attributes, as for State.

    Errors: UserError if the Trainer uses something that can not be kept.
    """
    see_version("transformers", TRIED)
    _see_that_it_can_be_kept(trainer)
    _Held(trainer, named)
    return trainer


def _see_that_it_can_be_kept(trainer: Any) -> None:
    library = sys.modules.get("transformers")
    base = getattr(library, "Trainer", None)
    if base is None or not isinstance(trainer, base):
        raise UserError(
            f"hold() is for a Trainer of transformers, and was given a {type(trainer).__name__}"
        )
    for name in _OURS:
        if not hasattr(base, name):
            raise UserError(
                f"transformers {getattr(library, '__version__', '?')} has no Trainer.{name}, by "
                f"which hold() keeps the training; versions that were tried: {', '.join(TRIED)}"
            )
        if getattr(type(trainer), name) is not getattr(base, name):
            raise UserError(
                f"{type(trainer).__name__} has a {name}() of its own, which hold() could not keep; "
                "override compute_loss(), training_step() or callbacks, or write the loop yourself "
                "(examples/pytorch/accelerate_loop.py)"
            )
    args = trainer.args
    refused = {
        "auto_find_batch_size": "auto_find_batch_size",
        "eval_on_start": "eval_on_start: call trainer.evaluate() before trainer.train()",
        "deepspeed": "DeepSpeed",
        "fsdp": "fsdp",
        "push_to_hub": "push_to_hub",
        "ignore_data_skip": "ignore_data_skip",
    }
    for name, what in refused.items():
        if getattr(args, name, None):
            raise UserError(f"hold() can not keep a Trainer with {what}")
    if trainer.is_in_train:
        raise UserError("hold() comes before trainer.train()")


class _Start:
    """The number of the first epoch, which is known only once State was made."""

    def __init__(self, find: Callable[[], int]) -> None:
        self._find = find

    def __index__(self) -> int:
        return self._find()


class _TrainerState(Attributes):
    """A TrainerState, whose log has times in it."""

    def state_dict(self) -> dict[str, Any]:
        """Return the values, with times apart."""
        state = super().state_dict()
        log = state["values"]["log_history"]
        kept = [{k: v for k, v in entry.items() if not _is_time(k)} for entry in log]
        state["values"] = {**state["values"], "log_history": kept}
        return {**state, "times": Unseen(log)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the values, with times."""
        values = {**state["values"], "log_history": state["times"].value}
        super().load_state_dict({**state, "values": values})


def _is_time(key: str) -> bool:
    return key.endswith(("_runtime", "_per_second"))


class _Held:
    """What is put in place of methods of one Trainer."""

    def __init__(self, trainer: Any, named: dict[str, Any]) -> None:
        self._trainer = trainer
        self._named = named
        self._driven: Driven | None = None
        self._plain = {name: getattr(trainer, name) for name in _OURS}
        self._save = trainer._save_checkpoint
        trainer._init_training_state = self._init_training_state
        trainer._prepare_for_training = self._prepare_for_training
        trainer._run_epoch = self._run_epoch
        trainer.get_batch_samples = self._get_batch_samples
        trainer._load_rng_state = lambda checkpoint: None
        trainer._maybe_log_save_evaluate = self._maybe_log_save_evaluate
        trainer._save_checkpoint = self._save_checkpoint

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[Any, int]:
        given = [*args, *kwargs.values()]
        resume = kwargs.get("resume_from_checkpoint", given[3] if len(given) > 3 else None)
        if resume is not None:
            raise UserError(
                "hold() can not keep train(resume_from_checkpoint=...): start with "
                "`holdfast run --snapshot DIR --resume auto`, which goes on in mid-epoch"
            )
        if self._driven is not None:
            raise UserError("hold() keeps one call of trainer.train(); this is another")
        self._plain["_init_training_state"](*args, **kwargs)
        return _Start(lambda: self._driven.state.epoch if self._driven else 0), 0

    def _prepare_for_training(self, max_steps: int, loader: Any, resume: Any) -> tuple[Any, Any]:
        trainer = self._trainer
        model, loader = self._plain["_prepare_for_training"](max_steps, loader, resume)
        known = {id(thing) for thing in vars(trainer).values()}
        known |= {id(trainer), id(model), id(loader), id(trainer.control)}
        keepers = dict(self._keepers(known))
        state = State(model, trainer.optimizer, scheduler=trainer.lr_scheduler, **keepers)
        say_what_is_lost(state, keepers.values(), "transformers.")
        groups = Groups(loader, trainer.args.gradient_accumulation_steps)
        self._driven = Driven(state, groups, trainer.state.num_train_epochs)
        return model, loader

    def _keepers(self, known: set[int]) -> Iterator[tuple[str, Any]]:
        trainer = self._trainer
        # The columns that the model takes stand in a set's order, which differs by process.
        passing = {*vars(trainer).keys() & self._plain.keys(), "is_in_train", "_signature_columns"}
        yield "trainer", Attributes(lambda: trainer, known | _ids_of_parts(trainer), passing)
        yield "trainer_state", _TrainerState(lambda: trainer.state)
        yield "control", Attributes(lambda: trainer.control)
        for i, callback in enumerate(trainer.callback_handler.callbacks):
            found = Attributes(the(callback), known)
            yield f"callback{i}_{type(callback).__name__}", found
        for name in _USED:
            used = getattr(trainer, name, None)
            used = getattr(used, "__self__", used)
            is_object = hasattr(used, "__dict__") and not isinstance(used, (FunctionType, type))
            if is_object and used is not trainer:
                yield name, Attributes(the(used), known - {id(used)})
        yield from self._named.items()

    def _run_epoch(self, **kwargs: Any) -> None:
        trainer, driven = self._trainer, self._driven
        assert driven is not None
        if not driven.enter():
            return
        if driven.epoch != kwargs["epoch"]:
            raise UserError(
                f"the Trainer is in epoch {kwargs['epoch']}, and its data in {driven.epoch}"
            )

        def body() -> None:
            done = driven.state.batch * trainer.args.gradient_accumulation_steps
            there = {
                "epochs_trained": driven.epoch,
                "steps_trained_in_current_epoch": done,
                "resume_from_checkpoint": "State" if done else None,
            }
            self._plain["_run_epoch"](**{**kwargs, **there})

        driven.run(body, lambda: bool(trainer.control.should_training_stop))

    def _get_batch_samples(self, _: Any, count: int, device: Any) -> tuple[list[Any], Any]:
        assert self._driven is not None
        batches = self._driven.take()
        return batches, self._trainer._get_num_items_in_batch(batches, device)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self._driven is not None:
            self._driven.see_that_it_is_not_void()
        self._plain["_maybe_log_save_evaluate"](*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self._driven is not None:  # A void step's metric must not have a checkpoint deleted.
            self._driven.see_that_it_may_save()
        self._save(*args, **kwargs)


def _ids_of_parts(trainer: Any) -> set[int]:
    return {id(value) for value in vars(trainer).values() if hasattr(value, "state_dict")}
