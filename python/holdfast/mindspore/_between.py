"""Undo, for a repair in the process, what the program and its callbacks changed between two steps.

A repair (UCE) enters Model.train's loop again, whose callbacks then begin the training, the epoch
and the step once more. So their first changes are taken back: all is as it was when the step before
was done and the callbacks had heard of it. If not all callbacks had heard of it, they hear of it
again, as in a successor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.mindspore import _callbacks
from holdfast.mindspore._image import Changes
from holdfast.mindspore._steps import Steps

# In the order of Model._train_process.
BEGINS: Final = ("on_train_begin", "on_train_epoch_begin", "on_train_step_begin")


class Held:
    """The attributes of a callback at one moment."""

    def __init__(self, callback: Any, kept: _callbacks.Kept) -> None:
        """Hold a callback, and what _callbacks.attributes() returned for it now."""
        self._callback, self._kept, self._names = callback, kept, set(vars(callback))

    def put_back(self) -> None:
        """Bring its attributes back, and delete those that it did not have."""
        for name in vars(self._callback).keys() - self._names:
            delattr(self._callback, name)
        _callbacks.give_back(self._callback, self._kept)


@dataclass
class Rest:
    """The state of things when one step was done and no callback of the next had begun."""

    call: int  # Of Model.train.
    version: int  # Steps that were done.
    begin: int  # Which of BEGINS came next.
    changes: Changes
    held: list[Held]
    entered: tuple[int, int, int]  # First epoch, batch and step of the call.
    cells: Callable[[], None] = lambda: None  # Brings their attributes back.

    def put_back(self, steps: Steps) -> None:
        """Bring parameters, callbacks and cells back to it."""
        steps.go_back(self.changes)
        self.cells()
        for held in self.held:
            held.put_back()


def around_begins(
    manager: Any, before: Callable[[int], None], after: Callable[[int], None]
) -> None:
    """Have `before` and `after` called around each of BEGINS, with its number."""
    for place, name in enumerate(BEGINS):
        usual = getattr(manager, name)

        def begin(context: Any, place: int = place, usual: Callable[[Any], None] = usual) -> None:
            before(place)
            usual(context)
            after(place)

        setattr(manager, name, begin)


def begins_as_usual(manager: Any) -> None:
    """Take the functions of around_begins() away."""
    for name in BEGINS:
        vars(manager).pop(name, None)
