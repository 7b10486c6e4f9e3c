"""Keep what a trainer's objects hold: attributes with plain values, and parts with state_dict()."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from holdfast._vars import Places, dumps, into, is_plain
from holdfast.torch._trainers import Metric, is_metric

# An attribute that has more bytes as training begins is taken for data that does not change.
LARGEST: Final = 1 << 17
_LIBRARIES: Final = (
    *("builtins", "torch", "torchmetrics", "lightning", "pytorch_lightning"),
    *("lightning_fabric", "transformers", "ignite"),
)
_SAME_IN_ALL: Final = (FunctionType, MethodType, BuiltinFunctionType, ModuleType, type)


def the(thing: Any) -> Callable[[], Any]:
    """Return what finds this object, for Attributes."""
    return lambda: thing


class Unseen:
    """A value that is kept, but not compared: how long something took differs in every run."""

    has_no_digest = True

    def __init__(self, value: Any) -> None:
        """Hold the value."""
        self.value = value


class Attributes:
    """The attributes of one object, which State keeps. Not thread-safe.

    An attribute that is neither plain nor has state_dict() is left as it is.
    """

    keeps_attributes: Final = True

    def __init__(
        self,
        find: Callable[[], Any],
        known: Collection[int] = (),
        but: Collection[str] = (),
        may_be_large: Collection[str] = (),
        is_compared: bool = True,
    ) -> None:
        """`find` returns the object, which may be another one later.

        `known`: ids of objects that are kept already; `but`: names that are not kept;
        `may_be_large`: names that are kept only while they are small; `is_compared`: runs of a
        program end with the same.
        """
        self._find = find
        self._known = known
        self._large = {n for n, value in vars(find()).items() if _is_large(value)}
        self._large.difference_update(but, may_be_large)
        self._but = {*but, *self._large}
        self._may_be_large = may_be_large
        self._is_compared = is_compared

    def state_dict(self) -> dict[str, Any]:
        """Return the values by name, the states of parts, and the names of all attributes.

        A replacement may lack one that is not kept, so the names are not compared.
        """
        values, parts, names = {}, {}, []
        for name, value in self._named():
            names.append(name)
            if is_plain(value):
                if name not in self._may_be_large or not _is_large(value):
                    values[name] = value
            elif self._is_part(value):
                parts[name] = _counted(value).state_dict()
        made = {"values": values, "parts": parts, "names": Unseen(names)}
        return made if self._is_compared else {"unseen": Unseen(made)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the attributes. One that was made since then is removed."""
        if (unseen := state.get("unseen")) is not None:
            state = unseen.value
        thing, now = self._find(), dict(self._named())
        places = Places()
        for name, value in state["values"].items():
            setattr(thing, name, into(now.get(name), value, places))
        for name, part in state["parts"].items():
            if (there := now.get(name)) is not None and hasattr(there, "load_state_dict"):
                _counted(there).load_state_dict(part)
        for name in now.keys() - set(state["names"].value):
            if is_plain(now[name]) or self._is_part(now[name]):  # Not a method put in its place.
                delattr(thing, name)

    def is_of(self, library: str) -> bool:
        """Return whether the object's class is one of a library's own."""
        return type(self._find()).__module__.startswith(library)

    def lost(self) -> Iterator[str]:
        """Yield a phrase for each attribute that a replacement makes anew."""
        kind = type(self._find()).__name__
        for owner in type(self._find()).__mro__:
            if owner.__module__.partition(".")[0] in _LIBRARIES:
                break
            for name, value in vars(owner).items():
                if isinstance(value, (list, dict, set, deque)) and not name.startswith("__"):
                    yield f"`{owner.__name__}.{name}`, which the class holds and no object,"
        for name in self._large:
            yield f"`{kind}.{name}`, which has more than {LARGEST:,} bytes,"
        for name, value in self._named():
            if id(value) in self._known or isinstance(value, _SAME_IN_ALL):
                continue
            if not is_plain(value) and not self._is_part(value):
                yield f"`{kind}.{name}` ({type(value).__name__}), which has no state_dict(),"

    def _named(self) -> Iterator[tuple[str, Any]]:
        for name, value in sorted(vars(self._find()).items()):
            if name not in self._but:
                yield name, value

    def _is_part(self, value: Any) -> bool:
        has = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
        return has and id(value) not in self._known


def _counted(part: Any) -> Any:
    """Return what keeps a part: torchmetrics tell nothing of their counts by state_dict()."""
    return Metric(part) if is_metric(part) else part


def _is_large(value: Any) -> bool:
    return is_plain(value) and len(dumps(value)) > LARGEST
