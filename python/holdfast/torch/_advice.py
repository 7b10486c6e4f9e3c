"""What a program does that a process that replaces another would do otherwise: said at its start.

Once each, by rank 0 of a job's first start, where nothing has gone wrong yet.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import torch

from holdfast.torch._bodies import is_in_for
from holdfast.torch._engine import Engine, say
from holdfast.torch._forms import LIBRARIES, OURS
from holdfast.torch._frames import callers

_BEGIN: Final = (
    "begin with range(state.epoch, ...) and say which pass it is: state.steps(loader, epoch=epoch)"
)


class Advice:
    """For one program. Not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        """Say nothing yet."""
        self._engine: Final = engine
        self._looked: set[str] = set()
        self._seen: dict[str, str] = {}  # What the program has done since the last pass, and where.
        self._put_back: list[Callable[[], None]] = []  # Functions that are watched.

    def see_own_loop(self, frame: FrameType | None) -> None:
        """Before the first `with state.step()`: warn of a `for`, which makes no step again."""
        if self._is_due("own loop") and _is_in_for(frame):
            say(
                "the loop around `with state.step()` is a `for`: it goes on with the next where a "
                "step was void, and begins anew in a process that replaces another; let it be "
                "`while state.n < TOTAL:`, and take what was counted from `state.n`"
            )

    def leave_pass(self) -> None:
        """Watch what is saved and evaluated before the next pass."""
        if not self._put_back and self._is_due("passes"):
            self._looked.discard("passes")
            self._watch(torch, "save")
            self._watch(torch.nn.Module, "eval")

    def enter_pass(self, knows: bool) -> None:
        """Warn of what a replacement does again for passes that are done, with what it has then.

        `knows`: the program asks for `state.epoch`, so it begins with the pass under way.
        """
        for put_back in self._put_back:
            put_back()
        self._put_back = []
        seen, self._seen = self._seen, {}
        if knows or not seen:
            return
        if "save" in seen and self._is_due("save"):
            say(
                f"{seen['save']} saves a file between two passes over data; a process that "
                "replaces another comes by there for the passes that are done, too, and writes "
                f"what it has then; {_BEGIN}"
            )
        if "eval" in seen and not self._engine.told.has_asked and self._is_due("eval"):
            say(
                f"{seen['eval']} evaluates between two passes over data, and the ranks tell each "
                "other nothing of it; a process that replaces another does so again for the passes "
                "that are done, with the weights that it has then: its best loss, its patience and "
                "its history become others. Sum it over the ranks; or keep those in a dict that "
                f"State is given, and {_BEGIN}"
            )

    def _watch(self, owner: Any, name: str) -> None:
        """Note who of the program calls a function."""
        usual = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            if not frame.f_code.co_filename.startswith(LIBRARIES):
                place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
                self._seen.setdefault(name, place)
            return usual(*args, **kwargs)

        def put_back() -> None:
            if getattr(owner, name) is watched:
                setattr(owner, name, usual)

        setattr(owner, name, watched)
        self._put_back.append(put_back)

    def _is_due(self, what: str) -> bool:
        if what in self._looked:
            return False
        self._looked.add(what)
        return self._engine.place.rank == 0 and self._engine.first_start


def say_what_changed(before: dict[str, bytes], now: dict[str, bytes]) -> bool:
    """Warn of what a loop of the program's own changes between its steps, by digests."""
    changed = [name for name, digest in now.items() if before.get(name) != digest]
    if changed:
        say(
            f"`{changed[0]}` was changed between two steps of a loop of your own; a fault there "
            "takes that back. Change it within `with state.step():`, or use state.steps(loader)"
        )
    return bool(changed)


def _is_in_for(frame: FrameType | None) -> bool:
    """Whether the innermost loop of the program's own around `frame` is a `for`."""
    of_loops = (
        is_in_for(f.f_code, f.f_lasti)
        for f in callers(frame)
        if not f.f_code.co_filename.startswith((OURS, *LIBRARIES))
    )
    return next((found for found in of_loops if found is not None), False)
