"""CheckLoss: a step of Model.train whose loss is bad does not count (docs/decisions/0023)."""

from __future__ import annotations

import math

from mindspore.train.callback import Callback

from holdfast._losses import Losses


class CheckLoss(Callback):  # type: ignore[misc]
    """Give it to Model.train, on all ranks: a step counts only if no rank's loss is bad.

    The loss is the mean of the first of the step's outputs, as LossMonitor shows it. Bad is what is
    NaN, infinite, or greater than `at_most`, which other callbacks may change. At the step's end
    parameters are then as before it, on all ranks, and the step is made again. If a loss is bad
    again, the job ends with a sentence that names step, rank and loss (`then="stop"`), or the batch
    is left out (`then="skip"`): nothing of the step stays but its number, and callbacks get the
    outputs of the step before it, if there is one.
    """

    def __init__(self, at_most: float = math.inf, then: str = "stop") -> None:
        """UserError: `then` is neither "stop" nor "skip"."""
        super().__init__()
        self.at_most, self.then = at_most, then
        self.look(Losses(), 0.0)

    def look(self, losses: Losses, loss: float) -> None:
        """Take in the loss of a step."""
        losses.check(loss, self.at_most, self.then)
