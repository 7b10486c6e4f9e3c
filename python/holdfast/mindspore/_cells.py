"""What cells of the program's own have in plain attributes, and change when they run (PyNative).

`self.calls += 1` in construct, as for a warm-up, is part of what a step depends on: a step that is
made again counts once, and a replacement goes on with the number. In a graph it is a constant.
"""

from __future__ import annotations

from typing import Any, Final

_PLAIN: Final = (bool, int, float, str, type(None))
_NONE: Final = object()

Plain = dict[tuple[str, str], Any]  # By the names of cell and attribute.


class Cells:
    """The cells of one network whose classes are not MindSpore's."""

    def __init__(self, network: Any) -> None:
        """Look at them as they are before the first step."""
        from mindspore import context, nn

        eager = context.get_context("mode") == context.PYNATIVE_MODE
        self._usual = vars(nn.Cell()).keys()
        self._cells = {
            name: cell
            for name, cell in (network.cells_and_names() if eager else ())
            if not type(cell).__module__.startswith("mindspore.")
        }
        self._names: dict[str, tuple[int, list[str]]] = {}  # Of each cell's attributes, and of all.
        self._first = self.now()

    def now(self) -> Plain:
        """Return all plain attributes."""
        found = {}
        for name, cell in self._cells.items():
            held = vars(cell)
            count, names = self._names.get(name, (0, []))
            if count != len(held):  # It has got others since.
                names = [key for key, value in held.items() if self._counts(key, value)]
                self._names[name] = len(held), names
            for key in names:
                value = held.get(key, _NONE)
                if isinstance(value, _PLAIN):
                    found[name, key] = value
        return found

    def _counts(self, key: str, value: Any) -> bool:
        return key not in self._usual and isinstance(value, _PLAIN)

    def changed(self) -> Plain:
        """Return those that are not as before the first step."""
        first = self._first
        return {at: value for at, value in self.now().items() if first.get(at, _NONE) != value}

    def put(self, values: Plain) -> None:
        """Bring all to what now() has returned; those that came later go."""
        for name, key in self.now().keys() - values.keys():
            del vars(self._cells[name])[key]
        for (name, key), value in values.items():
            if name in self._cells:
                setattr(self._cells[name], key, value)

    def put_changed(self, changed: Plain) -> None:
        """Bring all to what changed() has returned."""
        self.put({**self._first, **changed})
