"""What `state.steps(loader)` is: its batches, and in all else the loader."""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterator
from typing import Any, Generic, TypeVar

from holdfast._errors import UserError

_Batch = TypeVar("_Batch")


class Steps(Generic[_Batch]):
    """The steps of some passes over data, to be gone through once.

    Functions of a program that are given its loader (to show how far they are, for one) get this in
    its place: it has the loader's length and attributes.
    """

    def __init__(self, data: Any, batches: Generator[_Batch], epochs: int) -> None:
        """Yield what `batches` does: `epochs` passes over `data`."""
        self._data = data
        self._epochs = epochs
        self._held: Iterator[_Batch] | None = batches
        self._batches = weakref.ref(batches)

    def __len__(self) -> int:
        """Return the batches of all its passes, those that are done already too."""
        return len(self._data) * self._epochs

    def __getattr__(self, name: str) -> Any:
        """Return what the loader has: `dataset`, `sampler`, `batch_size`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._data, name)

    def __iter__(self) -> Iterator[_Batch]:
        """Begin, or go on with what still is under way.

        The loop alone holds the generator: leaving it by `break` has to end the step.
        """
        batches = self._batches()
        if batches is None:
            raise UserError(
                "this state.steps(...) has been gone through, or was left by `break`; call "
                "state.steps(loader) again for each pass over the data"
            )
        self._held = None
        return batches

    def __next__(self) -> _Batch:
        """Return the batch of the next step."""
        self._held = iter(self)
        return next(self._held)
