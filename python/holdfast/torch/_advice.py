"""What a program does that a process that replaces another would do otherwise: said at its start.

Once each, by rank 0 of a job's first start, where nothing has gone wrong yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from holdfast.torch._bodies import is_in_for
from holdfast.torch._data import is_enumerated
from holdfast.torch._engine import Engine, say
from holdfast.torch._forms import LIBRARIES
from holdfast.torch._frames import callers

_HERE: Final = str(Path(__file__).parent)


class Advice:
    """For one program. Not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        """Say nothing yet."""
        self._engine: Final = engine
        self._looked: set[str] = set()
        self._saver = ""  # Who has saved a file since the last pass.
        self._save: Callable[..., Any] | None = None  # torch's own, while ours is in its place.

    def see_who_counts(self, frame: FrameType | None) -> None:
        """Before the first batch: warn of a count that begins anew in a replacement.

        In one itself it was said, and the others wait: to look takes as long as two steps.
        """
        if self._is_due("counts") and is_enumerated(frame):
            say(
                "`enumerate(state.steps(...))` counts from 0 in a process that replaces another, "
                "and from elsewhere in the others, which then do different things; take "
                "`state.batch`, the batches of this epoch before this one, or `state.n`, the steps"
            )

    def see_own_loop(self, frame: FrameType | None) -> None:
        """Before the first `with state.step()`: warn of a `for`, which makes no step again."""
        if self._is_due("own loop") and _is_in_for(frame):
            say(
                "the loop around `with state.step()` is a `for`: it goes on with the next where a "
                "step was void, and begins anew in a process that replaces another; let it be "
                "`while state.n < TOTAL:`, and take what was counted from `state.n`"
            )

    def leave_pass(self) -> None:
        """Watch what is saved before the next pass."""
        if self._save is None and self._is_due("saves"):
            self._looked.discard("saves")
            self._save, torch.save = torch.save, self._watched

    def enter_pass(self, knows: bool) -> None:
        """Warn of a file that is written again for passes that are done.

        `knows`: the program asks for `state.epoch`, so it begins with the pass under way.
        """
        if self._save is not None and torch.save == self._watched:
            torch.save = self._save
        self._save = None
        if self._saver and not knows and self._is_due("saves"):
            say(
                f"{self._saver} saves a file between two passes over data; a process that replaces "
                "another comes by there for the passes that are done, too, and writes what it has "
                "then; begin with range(state.epoch, ...) and say which pass it is: "
                "state.steps(loader, epoch=epoch)"
            )
        self._saver = ""

    def _watched(self, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        self._saver = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        assert self._save is not None
        return self._save(*args, **kwargs)

    def _is_due(self, what: str) -> bool:
        if what in self._looked:
            return False
        self._looked.add(what)
        return self._engine.place.rank == 0 and self._engine.first_start


def _is_in_for(frame: FrameType | None) -> bool:
    """Whether the innermost loop of the program's own around `frame` is a `for`."""
    of_loops = (
        is_in_for(f.f_code, f.f_lasti)
        for f in callers(frame)
        if not f.f_code.co_filename.startswith((*LIBRARIES, _HERE))
    )
    return next((found for found in of_loops if found is not None), False)
