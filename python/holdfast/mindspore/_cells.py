"""Attributes of the program's own cells that change when the cells run (PyNative).

A step may depend on such an attribute: `self.calls += 1` in construct counts for a warm-up, or
gradients are added up there. So they are kept: a replayed step counts once, and a successor goes on
with the last values. In a graph such an attribute is a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from holdfast.mindspore import _callbacks
from holdfast.mindspore._data import NoDataError, dumps

_MOST_BYTES: Final = 64 << 10  # Of one attribute.
_MOST_CHANGED: Final = 256 << 10  # Of all that have changed, since each step writes them.
_PLAIN: Final = (bool, int, float, str, type(None))
_NONE: Final = object()
_MANY: Final = (list, tuple)


class _Data(bytes):
    """Pickled data: a copy, since the list or tensor itself may change."""


Plain = dict[tuple[str, str], Any]  # By the names of cell and attribute.


def hidden_parameters(network: Any) -> list[Any]:
    """Return parameters that get_parameters() misses: in lists, or in objects other than cells."""
    from mindspore import Parameter, nn

    held: list[Any] = []
    for _, cell in network.cells_and_names():
        for value in list(vars(cell).values()):
            if not isinstance(value, (nn.Cell, type, Parameter, list, tuple, dict)):
                value = list(getattr(value, "__dict__", {}).values())
            parts = list(value.values()) if isinstance(value, dict) else value
            held += [p for p in parts if isinstance(p, Parameter)] if type(parts) in _MANY else []
    return _callbacks.held_by(held, list(network.get_parameters()))


class Cells:
    """The cells of one network whose classes are not MindSpore's."""

    def __init__(self, network: Any, say_once: Callable[[str], None]) -> None:
        """Note the attributes as they are before the first step."""
        self._say_once = say_once
        from mindspore import context, nn

        eager = context.get_context("mode") == context.PYNATIVE_MODE
        self._usual = vars(nn.Cell()).keys()
        self._cells = {
            name: cell
            for name, cell in (network.cells_and_names() if eager else ())
            if not type(cell).__module__.startswith("mindspore.")
        }
        self._large: dict[tuple[str, str], Any] = {}  # Too large ones, as at the start.
        self._first: Plain = {}
        self._first = self.now()

    def now(self) -> Plain:
        """Return the attributes that are data, by the names of cell and attribute."""
        found = {}
        for name, cell in self._cells.items():
            for key, value in list(vars(cell).items()):
                if key not in self._usual:
                    kept = value if isinstance(value, _PLAIN) else self._packed((name, key), value)
                    if kept is not _NONE:
                        found[name, key] = kept
        return found

    def _packed(self, at: tuple[str, str], value: Any) -> Any:
        """Return a pickled copy of an attribute; _NONE: it is no data, or too large."""
        try:
            packed = _Data(dumps(value))
        except NoDataError:
            return _NONE
        if len(packed) <= _MOST_BYTES:
            return packed
        if not self._first:
            self._large[at] = value
        elif self._large.get(at) is not value:
            self._left_out(*at, _MOST_BYTES)
        return _NONE

    def _left_out(self, cell: str, key: str, limit: int) -> None:
        whose = type(self._cells[cell]).__name__
        self._say_once(
            f"attribute '{key}' of cell {whose} is beyond {limit >> 10} KiB and is not kept: where "
            "it changes in a step, a process that replaces another has what the program gives it "
            "at its start; a Parameter is kept whatever its size"
        )

    def changed(self) -> Plain:
        """Return the attributes that differ from what they were before the first step."""
        first, found, size = self._first, {}, 0
        for at, value in self.now().items():
            if first.get(at, _NONE) == value:
                continue
            size += len(value) if isinstance(value, _Data) else 0
            if size <= _MOST_CHANGED:
                found[at] = value
            else:
                self._left_out(*at, _MOST_CHANGED)
        return found

    def put(self, values: Plain) -> None:
        """Bring all attributes to what now() has returned, and delete those that came later."""
        for name, key in self.now().keys() - values.keys():
            del vars(self._cells[name])[key]
        for (name, key), value in values.items():
            if name not in self._cells:
                continue
            if isinstance(value, _Data):
                _callbacks.give_back(self._cells[name], {key: value})
            else:
                setattr(self._cells[name], key, value)

    def put_changed(self, changed: Plain) -> None:
        """Bring all attributes to what changed() has returned."""
        self.put({**self._first, **changed})
