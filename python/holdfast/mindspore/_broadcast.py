"""ops.Broadcast on Holdfast: takes and gives a tuple, as MindSpore's does."""

from __future__ import annotations

from typing import Any

from mindspore.nn import Cell


class Broadcast(Cell):  # type: ignore[misc]
    """Gives all ranks the root's tensors."""

    def __init__(self, operator: Any) -> None:
        """`operator`: one input, one output; or several of both."""
        super().__init__(auto_prefix=False)
        self.operator = operator

    def construct(self, tensors):  # type: ignore[no-untyped-def]
        results = self.operator(*tensors)
        if len(tensors) == 1:
            results = (results,)
        return results
