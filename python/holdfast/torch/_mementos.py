"""How objects of a program were before a step, to make them so again in the same process.

Each holds the very objects that its own one held, so whoever else knows them goes on doing so.
"""

from __future__ import annotations

import operator
import random
from collections import deque
from typing import Any, Final

import torch
from torch import Tensor

from holdfast.torch._forms import (
    NOTHING,
    PLAIN,
    Opaque,
    Room,
    attributes_of,
    brought_to,
    form_of,
    refill,
)

_DEPTH: Final = 3
# What is more, or larger, is not seen to change in place.
_MOST: Final = 1 << 8  # Things in all.
_WIDEST: Final = 1 << 6  # Of a container into whose parts we look.
_LONGEST: Final = 1 << 13
_ROOM: Final = Room(1 << 16, 64, 64)
_GONE: Final = object()
_DENSE: Final = (Tensor, torch.Generator, random.Random)


class Mementos:
    """Of all that variables hold and that can be changed in place."""

    def __init__(self, not_ours: set[int], with_tensors: bool = True) -> None:
        """Hold nothing. `not_ours`: ids of objects that are looked after elsewhere."""
        self._not_ours = not_ours
        self._with_tensors = with_tensors
        self._held: dict[int, tuple[Any, Any]] = {}  # By id: an object, and what it held.
        self._changed: list[tuple[Any, Any]] = []

    def add(self, value: Any) -> None:
        """Hold what a variable has."""
        left = deque([(value, 0)])
        while left and len(self._held) < _MOST:
            thing, depth = left.popleft()
            if type(thing) in PLAIN or id(thing) in self._not_ours or id(thing) in self._held:
                continue
            is_seen = self._with_tensors or not isinstance(thing, Tensor)
            content = _content_of(thing) if is_seen else NOTHING
            if content is NOTHING:
                continue
            if type(thing) is not tuple:  # Which holds the same for ever.
                self._held[id(thing)] = thing, content
            if depth < _DEPTH and isinstance(content, (dict, list, tuple)):
                parts = content.values() if isinstance(content, dict) else content
                if len(parts) <= _WIDEST and not PLAIN.issuperset(map(type, parts)):
                    left.extend((part, depth + 1) for part in parts)

    def see(self) -> None:
        """Find out what has changed by now."""
        for thing, was in self._held.values():
            now: Any = len(thing) if isinstance(was, int) else _content_of(thing)
            if now is NOTHING or _are_same(was, now):
                continue
            if isinstance(was, dict) and not isinstance(thing, dict):  # Those attributes alone.
                keys = [key for key in {**was, **now} if was.get(key, _GONE) is not now.get(key)]
                was = {key: was.get(key, _GONE) for key in keys}
            self._changed.append((thing, was))
        self._held = {}

    def put_back(self) -> None:
        """Have that as it was."""
        for thing, was in self._changed:
            _put_back(thing, was)
        self._changed = []

    def drop(self) -> None:
        """Hold nothing any more."""
        self._held, self._changed = {}, []


def _content_of(thing: Any) -> Any:
    """Return what a thing holds; NOTHING: it is not looked at."""
    try:
        return _look_into(thing)
    except Exception:  # Threads of the program change it, or it is an odd one.
        return NOTHING


def _look_into(thing: Any) -> Any:
    for kind, copy in ((deque, list), (list, list), (dict, dict), (set, set)):
        if isinstance(thing, kind):
            if len(thing) <= _LONGEST:
                return copy(thing)
            return len(thing) if kind is list else NOTHING
    if type(thing) is tuple:
        return thing
    held = attributes_of(thing)
    if held is not None:
        return dict(held)
    if isinstance(thing, _DENSE) or type(thing).__module__.split(".")[0] == "numpy":
        form = form_of(thing, _ROOM)
        return NOTHING if isinstance(form, Opaque) or form is thing else form
    return NOTHING


def _are_same(was: Any, now: Any) -> bool:
    if isinstance(was, dict) and isinstance(now, dict):
        a, b = [*was, *was.values()], [*now, *now.values()]
    elif isinstance(was, list) and isinstance(now, list):
        a, b = was, now
    else:
        return bool(was == now)
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _put_back(thing: Any, was: Any) -> None:
    if isinstance(was, int):  # A long list, that has grown.
        del thing[was:]
    elif isinstance(thing, (list, deque, dict, set)):
        refill(thing, was)
    elif (held := attributes_of(thing)) is not None:
        held.update((key, value) for key, value in was.items() if value is not _GONE)
        for key in [key for key, value in was.items() if value is _GONE]:
            held.pop(key, None)
    elif isinstance(thing, Tensor):
        if 0 not in thing.stride():  # Else its parts lie in one place, and whose that is has it.
            with torch.no_grad(), torch.inference_mode(thing.is_inference()):
                thing.copy_(brought_to(was))
    else:
        brought_to(was, thing)
