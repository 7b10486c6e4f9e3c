"""The exchange of gradients in semi-automatic parallel, and gradient functions that make it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from mindspore import Tensor, nn, ops

from holdfast._errors import UserError
from holdfast._seat import Phase
from holdfast.mindspore import _broadcast, _operators
from holdfast.mindspore._engine import Engine


class Exchange(nn.Cell):  # type: ignore[misc]
    """Returns gradients unchanged until begin(), then their mean over all ranks."""

    def __init__(self, weights: Sequence[Any]) -> None:
        """`weights`: the parameters whose gradients it gets."""
        super().__init__(auto_prefix=False)
        self.weights_of = list(weights)
        self.reducer: Any = nn.Identity()

    def begin(self, engine: Engine) -> None:
        """Exchange from now on. All ranks begin with rank 0's parameters."""
        reducer = nn.DistributedGradReducer(self.weights_of, True)
        take_rank_0s(engine, self.weights_of)
        self.reducer = reducer

    def __call__(self, grads: Any) -> Any:
        """Reduce outside of a graph. A graph compiled before begin() would never exchange."""
        return self.construct(grads)

    def construct(self, grads: Any) -> Any:
        """Reduce, within a graph or outside."""
        if isinstance(grads, Tensor):  # Of a single weight, given without a list.
            return self.reducer((grads,))[0]
        return self.reducer(grads)


def take_rank_0s(engine: Engine, weights: Sequence[Any]) -> None:
    """Give all ranks rank 0's parameters."""
    if not weights or engine.phase in (Phase.ECHO, Phase.LIVE):  # The others would not come.
        return
    number = engine.number("", "Broadcast", 0)
    operator = _operators.broadcast(engine.use(""), engine.world_size, 0, number)
    of_rank_0 = _broadcast.Broadcast(operator)(tuple(w.value() for w in weights))
    for weight, value in zip(weights, of_rank_0):
        ops.assign(weight, value)  # In place: optimizers hold this memory.


def flag(gradient: Any, name: str) -> bool:
    """Return a flag of a gradient operator; False if it lacks it, as GradOperation may."""
    return bool(getattr(gradient, name, False))


def shape(gradient: Any) -> tuple[bool, bool, bool]:
    """Return whether a gradient operator gives a value, more outputs, and gradients of inputs."""
    both = flag(gradient, "get_all") or flag(gradient, "get_by_position")
    return flag(gradient, "get_value"), flag(gradient, "has_aux"), both


def refuse_ids() -> None:
    """Raise UserError: gradients with ids are not offered."""
    raise UserError(
        "in semi-automatic parallel, gradients with return_ids=True are not exchanged; leave that "
        "out: gradients come in the order of the weights"
    )


# MindSpore's graph compiler reads the source of the functions down to exchanging().
def _part(grads: Any, mean: Any, both: bool) -> Any:
    if both:
        return grads[0], mean(grads[1])
    return mean(grads)


def placed(out: Any, mean: Any, value: bool, rest: bool, both: bool) -> Any:
    """Return the result of a gradient function, with its gradients replaced by their mean."""
    if value:
        return out[0], _part(out[1], mean, both)
    if rest:
        return _part(out[0], mean, both), out[1]
    return _part(out, mean, both)


def exchanging(
    usual: Callable[..., Any], mean: Exchange, value: bool, rest: bool, both: bool
) -> Callable[..., Any]:
    """Return a gradient function that exchanges."""

    def exchanged(*args, **kwargs):  # type: ignore[no-untyped-def]
        return placed(usual(*args, **kwargs), mean, value, rest, both)

    return exchanged


def reduces(cell: Any) -> bool:
    """Return whether a cell's construct, or a method that it calls, uses a reducer."""
    todo, seen = ["construct"], set[str]()
    while todo:
        name = todo.pop()
        seen.add(name)
        for kind in type(cell).__mro__:
            function = vars(kind).get(name)
            function = getattr(function, "__wrapped__", function)
            if not isinstance(function, FunctionType):
                continue
            names = function.__code__.co_names
            if any(isinstance(getattr(cell, n, None), nn.DistributedGradReducer) for n in names):
                return True
            todo += [n for n in names if n not in seen and n != name]
            if "super" not in names:
                break
    return False
