"""How far a job has come: what an image holds of it besides what the program gave to State."""

from __future__ import annotations

from typing import Any

from holdfast.torch._plan import Key
from holdfast.torch._position import Position
from holdfast.torch._random import Seeds


class Progress:
    """Steps, the place in the data, results of state.once(), the wish to stop."""

    def __init__(self, seeds: Seeds) -> None:
        """Stand before the first step."""
        self.n = 0  # Steps that are done; while one is committed, with it.
        self.position = Position()
        self.seeds = seeds  # The program's, of the first process that had this rank.
        self.stopped = False  # A rank wished to stop, in a step that is done.
        self.wish = False  # This rank does.
        self.results: dict[Key, bytes] = {}  # Of state.once(), pickled; see Results.

    def objects(self) -> Any:
        """Return what an image has to hold of this."""
        return self.n, self.position.objects(), self.seeds, self.stopped

    def restore(self, objects: Any, results: dict[Key, bytes]) -> None:
        """Go on from an image."""
        self.n, position, self.seeds, self.stopped = objects
        self.position.restore(position)
        self.results = dict(results)
        self.wish = False
