"""Plain values of a program that are kept with every step, and what can be kept at all."""

from __future__ import annotations

from typing import Any, Final

from holdfast._errors import UserError
from holdfast.mindspore import _callbacks
from holdfast.mindspore._outputs import pack

MOST_BYTES: Final = 1 << 20  # Of all together: it is written at every step.


class Vars:
    """What State.vars() returns: its attributes are kept with every step."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a value that was named before."""
        if name not in vars(self):
            raise AttributeError(f"'{name}' is not kept; name it first: state.vars({name}=...)")
        vars(self)[name] = value


def kept(found: dict[str, Any], say: str, room: int = MOST_BYTES) -> tuple[dict[str, Any], int]:
    """Return plain values as they can be written, and the room that is left.

    UserError: one is no data, or too large; `say`: how the program calls it, with {}.
    """
    result = {}
    for name, value in found.items():
        try:
            size = _callbacks.size_of(value, room)
        except TypeError:
            raise UserError(
                f"{say.format(name)} holds an object of class {type(value).__name__} that is no "
                "plain data, so it can not be kept: give numbers, texts, lists, dicts, arrays or "
                "tensors; an object that has state_dict() and load_state_dict() is given to State "
                "by name"
            ) from None
        room -= size
        if room < 0:
            raise UserError(
                f"{say.format(name)} is too large: what is kept with every step has at most "
                f"{MOST_BYTES >> 10} KiB together; large arrays are Parameters that State is given "
                "by name, and histories belong into files"
            )
        result[name] = pack(value)
    return result, room


class Named:
    """An object that State was given by name, other than cells and parameters."""

    def __init__(self, name: str, thing: Any) -> None:
        """UserError: there is nothing in it that can be kept."""
        self._name, self._thing = name, thing
        self._whole = _callbacks.has_state_dict(thing)
        if not self._whole and not hasattr(thing, "__dict__"):
            raise UserError(
                f"State({name}=...) is a {type(thing).__name__}, of which nothing can be kept: "
                "give a cell, a Parameter, or an object that has state_dict() and "
                "load_state_dict(); plain values belong into state.vars()"
            )

    def now(self, room: int) -> tuple[dict[Any, Any], int]:
        """Return what is to be kept of it, and the room that is left."""
        if self._whole:
            found = self._thing.state_dict()
            return kept(found, f"state_dict()['{{}}'] of {self._name}", room)
        data = {k: v for k, v in vars(self._thing).items() if _is_plain(v)}
        return kept(data, f"attribute '{{}}' of {self._name}", room)

    def put(self, held: dict[Any, Any]) -> None:
        """Bring it to what now() has returned."""
        if self._whole:
            held = {_callbacks.of_state_dict(name): value for name, value in held.items()}
        _callbacks.give_back(self._thing, held)


def _is_plain(value: Any) -> bool:
    try:
        _callbacks.size_of(value)
    except TypeError:
        return False
    return True
