"""Everything that a State of PyTorch keeps, by dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast._whose import FRAMEWORKS
from holdfast.verify._digest import digest
from holdfast.verify._probe import Told


def things_of(state: Any) -> Iterator[Any]:
    """Yield the objects themselves: those of the program may hold more than they tell State."""
    kept = state.kept
    yield from (tensor for _, tensor in kept.walk(True))
    yield from kept.optimizers.values()
    yield from kept.values.all.values()
    for thing in kept.others.values():
        if type(thing).__module__.partition(".")[0] in FRAMEWORKS:
            yield thing
        elif hasattr(thing, "state_dict"):
            values = thing.state_dict().values()
            yield Told(thing, frozenset(digest(value) for value in values))


def contents_of(state: Any) -> Iterator[tuple[str, Any]]:
    """Yield tensors and plain objects, each with the name that a person would look for."""
    kept = state.kept
    for key, tensor in kept.walk(False):
        yield ".".join(str(part).strip(".") for part in key[1:]), tensor
    objects = kept.objects()
    yield from objects["others"].items()
    yield from ((f"run.{name}", value) for name, value in kept.values.all.items())
    yield from ((f"{name}.param_groups", groups) for name, groups in objects["groups"].items())
    for what in ("loose", "extras", "requires_grad", "training"):
        yield what, objects[what]
