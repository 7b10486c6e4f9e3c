"""Undo, for a repair in the process, what the program and its callbacks changed between two steps.

A repair (UCE) enters Model.train's loop again, so its callbacks begin the training, the epoch and
the step a second time. What they changed the first time is taken back: all is as it was when the
step before was done and all callbacks had been called for its end. If some had not been called for
it yet, all are called again, as in a successor.
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
        """Set the callback's attributes to those values, and delete attributes that came later."""
        for name in vars(self._callback).keys() - self._names:
            delattr(self._callback, name)
        _callbacks.give_back(self._callback, self._kept)


@dataclass
class Rest:
    """What everything was like when a step was done and no callback of the next had begun."""

    call: int  # The number of the call of Model.train.
    version: int  # Steps that were done.
    begin: int  # The index in BEGINS of what came next.
    changes: Changes
    held: list[Held]
    entered: tuple[int, int, int]  # The call's first epoch, batch and step.
    cells: Callable[[], None] = lambda: None  # Brings the attributes of cells back.

    def put_back(self, steps: Steps) -> None:
        """Bring parameters, callbacks and cells back to what they were."""
        steps.go_back(self.changes)
        self.cells()
        for held in self.held:
            held.put_back()


def around_begins(
    manager: Any, before: Callable[[int], None], after: Callable[[int], None]
) -> None:
    """Have `before` and `after` called around each of BEGINS, with its index there."""
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
