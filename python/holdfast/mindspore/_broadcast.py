"""ops.Broadcast on Holdfast, and MindSpore's own use of it at the start of a training."""

from __future__ import annotations

from typing import Any

from mindspore.nn import Cell


class NoBroadcast:
    """Replaces the cell that gives all ranks rank 0's parameters: each rank keeps its own."""

    phase = ""

    def __call__(self) -> tuple[Any, ...]:
        """Return the values for the first parameters: none, so that no parameter is set."""
        return ()


class Broadcast(Cell):  # type: ignore[misc]
    """Gives all ranks the root's tensors. It takes and returns a tuple, as MindSpore's does."""

    def __init__(self, operator: Any) -> None:
        """`operator`: one input, one output; or several of both."""
        super().__init__(auto_prefix=False)
        self.operator = operator

    def construct(self, tensors):  # type: ignore[no-untyped-def]
        results = self.operator(*tensors)
        if len(tensors) == 1:
            results = (results,)
        return results

    def bprop(self, tensors, out, dout):  # type: ignore[no-untyped-def]
        return (dout,)  # As MindSpore's does.
