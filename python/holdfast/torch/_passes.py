"""Which pass over its data a program begins, where it does not say so.

Passes are counted from 0. A replacement runs the same program and counts alike, unless its loop
begins elsewhere: at the epoch of a snapshot that was not there when the job began, as torchrun's
users write it. A variable of the program that grew with the passes shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from types import FrameType
from typing import Any, Final

from holdfast._errors import UserError
from holdfast.torch._frames import callers, variables_of
from holdfast.torch._variables import Variables

_DEPTH: Final = 4  # Functions from the call outwards in which the loop over epochs is looked for.


class Passes:
    """Watches the program's whole numbers at each call of steps()."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Know nothing yet. `say`: where warnings go."""
        self.variables = Variables(say)  # What the passes have left in them.
        self._say = say
        self._calls = 0  # Of the job's first process and its successors, at most.
        self._ahead: dict[str, int] = {}  # By name: how much it always was ahead of the pass.
        self._has_begun = False  # This process has called.

    def objects(self) -> Any:
        """Return what an image has to hold of this."""
        return self._calls, self._ahead, self.variables.objects()

    def restore(self, objects: Any) -> None:
        """Go on from an image; in a process that has begun, that is where it is anyway."""
        if not self._has_begun:
            self._calls, self._ahead, variables = objects
            self.variables.restore(variables)

    def begin(self, counted: int, frame: FrameType | None) -> int:
        """Return the number of the pass that `frame` begins and that is the `counted`-th here."""
        now = _numbers(frame)
        number = counted
        if not self._has_begun and self._calls >= 2:  # Else it may as well be a constant.
            number += self._shift(now, counted)
        self._has_begun = True
        ahead = {name: value - number for name, value in now.items()}
        if self._calls:
            ahead = {name: n for name, n in self._ahead.items() if ahead.get(name) == n}
        self._ahead = ahead
        self._calls += 1
        return number

    def _shift(self, now: dict[str, int], counted: int) -> int:
        shifts = {
            name: now[name] - ahead - counted for name, ahead in self._ahead.items() if name in now
        }
        names = ", ".join(sorted(f"`{name.split()[-1]}`" for name, n in shifts.items() if n))
        if not names:
            return 0
        different = set(shifts.values())
        shift = different.pop()
        how = "say which pass it is: state.steps(loader, epoch=epoch)"
        if different or counted + shift < 0:
            self._say(
                f"after this restart {names} began elsewhere than at the job's start; if the loop "
                f"over epochs does, its passes are counted wrongly now: {how}"
            )
            return 0
        self._say(
            f"after this restart the loop over epochs begins at another one ({names}), so this is "
            f"taken for pass {counted + shift}; better {how}"
        )
        return shift


def see_that_passes_were_done(given: int, done: int) -> None:
    """At the end: raise if all passes were taken for done, by a loop that begins elsewhere.

    One that begins at the epoch of a snapshot of its own would end at once, and well, in a
    replacement alone: after a training that nobody has finished.
    """
    if given <= done:
        raise UserError(
            f"the program ends after {given} passes over its data, but "
            f"{done} were done before it was started again: its loop over epochs does "
            "not begin where it did then, as with the epoch of a snapshot; let it begin with "
            "range(state.epoch if state.n else EPOCH, ...) and say which pass it is: "
            "state.steps(loader, epoch=epoch)"
        )


def _numbers(frame: FrameType | None) -> dict[str, int]:
    found: dict[str, int] = {}
    for f in islice(callers(frame), _DEPTH):
        for name, value in variables_of(f).items():
            if type(value) is int:
                found[f"{f.f_code.co_name} {f.f_code.co_firstlineno} {name}"] = value
    return found
