"""Keep a program's checkpoints whole, and none from holding a later step than its name says."""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from holdfast.mindspore._imported import imported

if TYPE_CHECKING:
    from holdfast.mindspore._trainer import Trainer

_NAME: Final = "asyn_save_ckpt"  # Name of threads and processes: serialization.py:819, 834.


def finish() -> None:
    """Wait for files that save_checkpoint(async_save=...) is still writing.

    A step is not done before its files are. In a successor, callbacks are called for the last step
    that was done and for none before, so they write only that step's checkpoint again.
    """
    if multiprocessing.process._children:  # type: ignore[attr-defined]
        for process in multiprocessing.active_children():
            if process.name == _NAME:
                process.join()
    for thread in threading.enumerate():
        if thread.name == _NAME:
            thread.join()


def apply(trainer: Trainer) -> None:
    """Keep a process that passes over calls of Model.train from writing their files again."""
    module = imported("mindspore.train.serialization")
    usual: Callable[..., None] = module.save_checkpoint

    @functools.wraps(usual)
    def save_checkpoint(save_obj: Any, ckpt_file_name: Any, *given: Any, **named: Any) -> None:
        if trainer.engine.rehearses:
            return  # The rank writes it.
        if trainer.passes():
            trainer.engine.say_once(
                f"save_checkpoint('{ckpt_file_name}') between two calls of Model.train that were "
                "done before leaves the file as it was written then: the weights are later ones now"
            )
            return
        usual(save_obj, ckpt_file_name, *given, **named)

    for name in ("mindspore.train.serialization", "mindspore.train", "mindspore"):
        place = imported(name)
        if getattr(place, "save_checkpoint", None) is usual:
            place.save_checkpoint = save_checkpoint
