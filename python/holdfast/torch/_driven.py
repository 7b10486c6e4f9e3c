"""Steps of a loop that a trainer drives: it asks for batches, and knows of no void step.

A trainer's loop counts as it goes, in its objects and in local variables. State keeps the objects
(see _attributes.py); nobody can set the local variables. So a void step ends the trainer's function
for the epoch by an exception, and the function begins again from the batch where State stands. A
replacement begins there, too, so both take the same way through the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from holdfast._errors import UserError
from holdfast.torch._state import State

_Result = TypeVar("_Result")
_END: Final = object()


class Void(BaseException):
    """Ends the trainer's function for the epoch: the step under way is void."""

    def __str__(self) -> str:
        """Return what a trainer may log of it."""
        return "this step is void; Holdfast makes it again"


class Driven:
    """The steps of all epochs. Not thread-safe."""

    def __init__(self, state: State, data: Any, epochs: int) -> None:
        """Make passes over `data`, each a step per batch, as often as `epochs` says."""
        self.state = state
        self._data = data
        self._epochs = state.epochs(epochs)
        self._batches: Iterator[Any] = iter(())
        self._given: Any = _END  # The batch of the step under way.
        self._is_taken = True  # The trainer has it.
        self.epoch = -1  # The one that was entered last.

    def enter(self) -> bool:
        """Go to the next epoch, or to the one under way. False: it is over, or there is none."""
        self.epoch = next(self._epochs, -1)
        if self.epoch < 0:
            return False
        self._batches = iter(self.state.steps(self._data))
        self._given, self._is_taken = next(self._batches, _END), False
        return self._given is not _END

    def run(self, body: Callable[[], _Result], ends: Callable[[], bool]) -> _Result:
        """Call `body`, which makes the rest of the epoch by take(), until its last step is done.

        What `body` does after its last batch belongs to the last step. `ends`: whether the training
        ends with this epoch.
        """
        try:
            while True:
                try:
                    result = body()
                    if ends():
                        self.state.stop()
                    if self._finish():
                        break
                except Void:
                    pass
        except BaseException:
            self._batches.close()  # type: ignore[attr-defined]
            raise
        if self._given is not _END:
            self._batches.close()  # type: ignore[attr-defined]
            raise UserError(
                "the trainer left the epoch before its last batch, without an end of the training; "
                "a replacement could not do the same. Give it fewer batches instead"
            )
        return result

    def take(self) -> Any:
        """Return the next batch; end the step under way, if any. StopIteration: there is none.

        Void: that step has to be made again.
        """
        if self._is_taken and not self._finish():
            raise Void
        if self._given is _END:
            raise StopIteration
        self._is_taken = True
        return self._given

    def see_that_it_may_save(self) -> None:
        """Raise Void as below, before files are written or removed. A rehearsal ends here."""
        seat = self.state.engine.seat
        if seat.rehearses:
            seat.worker.rehearsal_skips(
                "the trainer saves a checkpoint in this step, and a rehearsal writes none"
            )
        self.see_that_it_is_not_void()

    def see_that_it_is_not_void(self) -> None:
        """Raise Void if the step under way has to be void: what it has computed is worth nothing.

        A trainer calls this before it decides on anything by what it has computed.
        """
        engine = self.state.engine
        if engine.in_step and engine.marked:
            self._finish()
            raise Void

    def _finish(self) -> bool:
        """End the step under way and begin the next one. False: it was void, and begins again."""
        n = self.state.n
        self._given, self._is_taken = next(self._batches, _END), False
        return self.state.n != n
