"""The things that a State of holdfast.torch keeps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast._digest import digest
from holdfast._whose import FRAMEWORKS
from holdfast.verify._probe import Told


def things_of(state: Any) -> Iterator[Any]:
    """Yield the kept objects. One of the program's classes may hold more than its state_dict()."""
    kept = state.kept
    yield from (tensor for _, tensor in kept.walk(True))
    yield from kept.optimizers.values()
    yield from kept.values.all.values()
    for thing in kept.others.values():
        if type(thing).__module__.partition(".")[0] in FRAMEWORKS:
            yield thing
        elif hasattr(thing, "state_dict"):
            values = list(thing.state_dict().values())
            yield Told(thing, frozenset(map(digest, values)), tuple({type(v) for v in values}))
