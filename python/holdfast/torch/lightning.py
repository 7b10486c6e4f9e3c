"""Lightning's Trainer, with its own loops, callbacks, validation, logs and checkpoints.

    import holdfast.torch as hf
    from holdfast.torch.lightning import hold

    hf.init()
    trainer = hold(Trainer(accelerator="cpu", strategy="ddp", devices=2, callbacks=[...]))
    trainer.fit(model, loader)

See docs/trainers.md. The names of Lightning that are used and are not documented there: of the
Trainer `_logger_connector` and `_signal_connector`; of its loops all that `_Held` names; of
ModelCheckpoint `file_exists` and `_fs`; what _logged.py names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from holdfast._errors import UserError
from holdfast.torch._attributes import Attributes, the
from holdfast.torch._driven import Driven
from holdfast.torch._groups import Groups
from holdfast.torch._held import say_what_is_lost, see_version
from holdfast.torch._logged import Logged
from holdfast.torch._state import State

TRIED: Final = ("2.6",)
_PACKAGES: Final = ("lightning", "pytorch_lightning")
_REFUSED: Final = {  # Callbacks, and why.
    "StochasticWeightAveraging": "it changes the schedulers in mid-training",
    "Timer": "when it stops depends on the time",
    "BatchSizeFinder": "it trains before the training",
    "LearningRateFinder": "it trains before the training",
}
_Trainer = TypeVar("_Trainer")


def hold(trainer: _Trainer, **named: Any) -> _Trainer:
    """Keep a Trainer's training; return the Trainer. Call this before trainer.fit().

    `named`: what the program changes besides attributes of callbacks and of the LightningModule, as
    for State.

    Errors: UserError if the Trainer uses something that can not be kept.
    """
    package = type(trainer).__module__.partition(".")[0]
    if package not in _PACKAGES or not hasattr(trainer, "fit_loop"):
        raise UserError(
            f"hold() is for a Trainer of Lightning, and was given a {type(trainer).__name__}"
        )
    see_version(package, TRIED)
    _Held(trainer, named)
    return trainer


class _Feed:
    """Stands for Lightning's fetcher of batches."""

    def __init__(self, driven: Driven, limit: int) -> None:
        self._driven = driven
        self._limit = limit
        self._batch: Any = None
        self.fetched = 0
        self.done = False
        self._start_profiler = self._stop_profiler = lambda: None

    def __iter__(self) -> _Feed:
        return self

    def take(self) -> None:
        """Take the next batch, which ends the step before. StopIteration: there is none."""
        (self._batch,) = self._driven.take()

    def __next__(self) -> tuple[Any, int, int]:
        at = self._driven.state.batch
        self.done = at + 1 >= self._limit
        batch, self._batch = self._batch, None
        return batch, at, 0

    def teardown(self) -> None:
        pass


class _Files:
    """Which checkpoints count: those saved in steps that are done, and those of earlier jobs."""

    def __init__(self, folders: set[str]) -> None:
        self.saved = [
            os.path.join(folder, name)
            for folder in sorted(folders)
            if os.path.isdir(folder)
            for name in sorted(os.listdir(folder))
        ]

    def count(self, path: Any) -> bool:
        """Return whether a file counts. One of a step that was void does not."""
        return str(path) in self.saved and os.path.exists(path)


class _Held:
    """What is put in place of methods of one Trainer and of its loops."""

    def __init__(self, trainer: Any, named: dict[str, Any]) -> None:
        self._trainer = trainer
        self._named = named
        self._driven: Driven | None = None
        self._feed: Any = None
        self._is_within = False  # A replacement's fit loop has not come to its epoch yet.
        fit = trainer.fit_loop
        epoch = fit.epoch_loop
        self._fit = SimpleNamespace(
            on_run_start=fit.on_run_start,
            on_advance_start=fit.on_advance_start,
            on_advance_end=fit.on_advance_end,
        )
        self._epoch = SimpleNamespace(run=epoch.run, reset=epoch.reset, advance=epoch.advance)
        self._save = trainer.save_checkpoint
        self._files = _Files(set())
        fit.on_run_start = self._on_run_start
        fit.on_advance_start = self._on_advance_start
        fit.on_advance_end = self._on_advance_end
        epoch.run, epoch.reset = self._run_epoch, self._reset_epoch
        epoch.advance = self._advance

    # ---- In place of the loops' own -------------------------------------------------------------

    def _on_run_start(self) -> None:
        trainer, fit = self._trainer, self._trainer.fit_loop
        self._see_that_it_can_be_kept()
        val = fit.epoch_loop.val_loop
        if trainer.enable_validation and val._combined_loader is None:
            trainer.validating = True
            val.setup_data()  # Now, and not in some step: all processes exchange the same.
            trainer.training = True
        self._fit.on_run_start()
        self._make_state()
        assert self._driven is not None
        if self._driven.state.n:
            self._is_within = self._driven.enter()

    def _make_state(self) -> None:
        trainer, fit = self._trainer, self._trainer.fit_loop
        loader = fit._combined_loader.flattened[0]
        limit = int(fit.max_batches)
        fit._combined_loader.reset()  # It has begun to read.
        folders = {str(c.dirpath) for c in trainer.checkpoint_callbacks if hasattr(c, "dirpath")}
        self._files = _Files(folders if trainer.is_global_zero else set())
        keepers = dict(self._keepers())
        schedulers = {
            f"scheduler{i}": config.scheduler
            for i, config in enumerate(trainer.lr_scheduler_configs)
        }
        optimizers = {f"optimizer{i + 1}": found for i, found in enumerate(trainer.optimizers)}
        state = State(trainer.strategy.model, **optimizers, **schedulers, **keepers)
        say_what_is_lost(
            state,
            (k for n, k in keepers.items() if n.startswith(("callback", "module", "data"))),
            "lightning",
        )
        epochs = fit.max_epochs if fit.max_epochs not in (None, -1) else sys.maxsize
        self._driven = Driven(state, Groups(loader, 1, limit), epochs)
        self._feed = fit._data_fetcher = _Feed(self._driven, limit)
        trainer.save_checkpoint = self._save_checkpoint
        remove, driven = trainer.strategy.remove_checkpoint, self._driven

        def remove_checkpoint(path: Any) -> None:
            driven.see_that_it_may_save()  # A void step's metric must not have a file deleted.
            remove(path)

        trainer.strategy.remove_checkpoint = remove_checkpoint
        for logger in trainer.loggers:
            if state.engine.seat.rehearses:
                logger.log_metrics = logger.save = lambda *args, **kwargs: None
            elif hasattr(_writer_of(logger), "metrics_file_path"):
                _save_after_steps(logger, state)
        for callback in trainer.checkpoint_callbacks:
            if hasattr(callback, "file_exists"):
                callback.file_exists = self._file_exists

    def _on_advance_start(self) -> None:
        if self._is_within:  # The predecessor has done it.
            self._trainer.fit_loop.setup_data()
        else:
            self._fit.on_advance_start()

    def _run_epoch(self, _: Any) -> None:
        driven, trainer = self._driven, self._trainer
        assert driven is not None
        if not self._is_within and not driven.enter():
            return
        self._is_within = False

        def body() -> None:
            trainer.training = True  # A void step may have ended in a validation, or in a hook.
            trainer.lightning_module._current_fx_name = None
            self._epoch.run(self._feed)
            self._fit.on_advance_end()

        driven.run(body, lambda: bool(trainer.fit_loop.done))

    def _advance(self, _: Any) -> None:
        self._feed.take()  # First: what Lightning exchanges before it fetches is in the new step.
        self._epoch.advance(self._feed)

    def _reset_epoch(self) -> None:
        assert self._driven is not None
        if self._driven.state.batch == 0:
            self._epoch.reset()

    def _on_advance_end(self) -> None:
        """Do nothing: the end of an epoch belongs to its last step, and was made there."""

    # ---- Checkpoints ----------------------------------------------------------------------------

    def _save_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> None:
        assert self._driven is not None
        self._driven.see_that_it_may_save()
        self._save(path, *args, **kwargs)
        if str(path) not in self._files.saved:
            self._files.saved.append(str(path))

    def _file_exists(self, path: Any, trainer: Any) -> bool:
        counts = self._files.count(path) if trainer.is_global_zero else False
        return bool(trainer.strategy.reduce_boolean_decision(counts, all=False))

    # ---- What is kept ---------------------------------------------------------------------------

    def _keepers(self) -> Iterator[tuple[str, Any]]:
        trainer, module = self._trainer, self._trainer.lightning_module
        fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
        val = epoch.val_loop
        loops = {
            "fit": fit,
            "epoch": epoch,
            "val": val,
            "automatic": epoch.automatic_optimization,
            "manual": epoch.manual_optimization,
        }
        known = {id(thing) for thing in (trainer, module, trainer.strategy, trainer.datamodule)}
        known |= {id(loop) for loop in loops.values()} | set(map(id, module.modules()))
        known |= {id(optimizer) for optimizer in trainer.optimizers}
        for name, loop in loops.items():
            yield f"{name}_loop", Attributes(the(loop), known)
        yield "connector", Attributes(lambda: trainer._logger_connector, known)
        known_of_trainer = known | {id(part) for part in vars(trainer).values()}
        times = {"_last_val_time", "_train_start_time"}
        yield "trainer", Attributes(lambda: trainer, known_of_trainer, times)
        yield "logged", Logged(epoch._results, module, trainer.strategy.reduce)
        yield "validated", Logged(val._results, module, trainer.strategy.reduce)
        yield "files", Attributes(lambda: self._files)
        for i, callback in enumerate(trainer.callbacks):
            if callback is trainer.progress_bar_callback:
                continue  # It numbers bars on the screen of this process.
            times = {"_last_time_checked"}
            found = Attributes(the(callback), known, times)
            yield f"callback{i}_{type(callback).__name__}", found
        for i, logger in enumerate(trainer.loggers):
            # The folder of a logger's version is another one in each run.
            yield f"logger{i}", Attributes(the(logger), known, is_compared=False)
            yield f"writer{i}", Attributes(partial(_writer_of, logger), known, is_compared=False)
        for name, own in (("module", module), ("datamodule", trainer.datamodule)):
            if own is not None:
                hidden = _names_of_base(own) | {"training", "trainer"}
                yield name, Attributes(the(own), known, hidden)
        yield from self._named.items()

    def _see_that_it_can_be_kept(self) -> None:
        trainer, fit = self._trainer, self._trainer.fit_loop
        for callback in trainer.callbacks:
            kind = type(callback).__name__
            if (why := _REFUSED.get(kind)) is not None:
                raise UserError(f"hold() can not keep a Trainer with {kind}: {why}")
            if getattr(callback, "_train_time_interval", None) is not None:
                raise UserError(
                    f"hold() can not keep {kind}(train_time_interval=...): when it saves depends "
                    "on the time; give it every_n_train_steps or every_n_epochs"
                )
        loader = fit._combined_loader
        refused = {
            "fit(ckpt_path=...): start with `holdfast run --snapshot DIR --resume auto`, which "
            "goes on in mid-epoch": trainer.ckpt_path is not None,
            "reload_dataloaders_every_n_epochs": trainer.reload_dataloaders_every_n_epochs,
            "a val_check_interval of time": getattr(trainer, "_val_check_time_interval", None),
            "max_time": getattr(trainer, "max_time", None),
            "several loaders for training": loader.iterables is not loader.flattened[0],
            "training_step(dataloader_iter)": hasattr(fit._data_fetcher, "iterator_wrapper"),
            "a second fit()": self._driven is not None,
            f"{type(trainer.strategy).__name__}": type(trainer.strategy).__name__
            not in ("DDPStrategy", "SingleDeviceStrategy"),
            "a training without an end or a length": fit.max_batches == float("inf"),
        }
        for what, is_used in refused.items():
            if is_used:
                raise UserError(f"hold() can not keep a Trainer with {what}")


def _save_after_steps(logger: Any, state: State) -> None:
    """Have CSVLogger write a step's rows once it is done: State keeps those not yet written."""
    plain_save, due = logger.save, [False]

    def save() -> None:
        if state.engine.in_step:
            due[0] = True
        else:
            plain_save()

    def save_what_is_due(_: int) -> None:
        if due[0]:
            due[0] = False
            plain_save()

    logger.save = save
    state.on_commit(save_what_is_due)


def _names_of_base(own: Any) -> set[str]:
    """Return the attributes that Lightning itself gives a LightningModule or a data module."""
    (base, *_) = (kind for kind in type(own).__mro__ if kind.__module__.startswith(_PACKAGES))
    hidden = {name for name in vars(base()) if name.startswith("_")}
    return hidden | {name for name in vars(own) if name.startswith("_hparams")}


def _writer_of(logger: Any) -> Any:
    """Return what CSVLogger writes by, on rank 0; else an object without attributes."""
    writer = getattr(logger, "_experiment", None)
    return writer if hasattr(writer, "metrics_file_path") else SimpleNamespace()
