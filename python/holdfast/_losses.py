"""Bad losses: NaN, infinite, or greater than the program allows. Their step does not count."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from holdfast._errors import UserError

HEARD: Final = struct.Struct("????d")  # A rank's wish to stop, then Losses.mine().


class Act(Enum):
    """What becomes of a step."""

    COMMIT = auto()
    MAKE_AGAIN = auto()
    SKIP = auto()
    END = auto()


class Losses:
    """What the ranks say of the loss of the step under way. Not thread-safe."""

    def __init__(self) -> None:
        """Begin before the first step."""
        self._tried = 0  # The step that was made again last, because of its loss.
        self.act = Act.COMMIT
        self.why = ""  # A sentence, unless it is COMMIT.
        self.begin()

    def begin(self) -> None:
        """Begin a step."""
        self._bad, self._ends, self._loss = False, False, 0.0

    def check(self, loss: Any, at_most: float, then: str) -> None:
        """Take in a loss of this rank."""
        if then not in ("stop", "skip"):
            raise UserError(f"a loss is checked with then={then!r}: there are 'stop' and 'skip'")
        value = float(loss)
        if self._bad or (math.isfinite(value) and value <= at_most):
            return
        self._bad, self._ends, self._loss = True, then == "stop", value

    def mine(self, n: int) -> tuple[bool, bool, bool, float]:
        """Return what this rank tells of step n: as HEARD says."""
        return self._bad, self._tried == n, self._ends, self._loss

    def judge(self, n: int, given: Sequence[Sequence[Any]]) -> None:
        """Decide what becomes of step n, by what each rank tells. All ranks come to the same."""
        bad = [(rank, loss) for rank, (is_bad, _, _, loss) in enumerate(given) if is_bad]
        self.act = Act.COMMIT
        if not bad:
            return
        rank, loss = bad[0]
        more = f" ({len(bad) - 1} other ranks' too)" if len(bad) > 1 else ""
        what = f"the loss of step {n} is {loss:g} on rank {rank}{more}"
        if not any(tried for _, tried, _, _ in given):
            self._tried = n
            self.act, self.why = Act.MAKE_AGAIN, f"{what}: it is made again"
        elif any(ends for _, _, ends, _ in given):
            self.act = Act.END
            self.why = (
                f"{what}, and a loss was bad before, from the same state and batch. Nothing of the "
                "step is kept. then='skip' leaves such a batch out"
            )
        else:
            self.act, self.why = Act.SKIP, f"{what}, again: its batch is left out"
