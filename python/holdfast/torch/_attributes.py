"""What modules of the program's have in plain attributes, and change when they run.

`self.calls += 1` in forward(), as for a temperature that falls, is part of what a step depends on:
a step that is made again counts once, and a replacement goes on with the number.
"""

from __future__ import annotations

from typing import Any, Final

import torch

_USUAL: Final = frozenset(vars(torch.nn.Module()))
_PLAIN: Final = (bool, int, float, complex, str, type(None))
_LONGEST: Final = 256  # Of a text.
_NONE: Final = object()
_Place = tuple[str, str]  # Names of a module and of its attribute.


class Attributes:
    """Those of modules whose classes are not PyTorch's: numbers and short texts."""

    def __init__(self) -> None:
        """Know no module."""
        self._modules: dict[str, dict[str, Any]] = {}  # Their attributes, as they are.
        self._places: list[_Place] = []
        self._count = 0  # Of all attributes when the places were looked for.
        self._first: dict[_Place, Any] = {}

    def add(self, name: str, module: torch.nn.Module) -> None:
        """Take up a module as it is before the first step."""
        own = {kind.__module__.split(".")[0] for kind in type(module).__mro__}
        if own - {"torch", "builtins", "abc", "typing"}:
            self._modules[name] = vars(module)
            self._first.update(
                ((name, key), value)
                for key, value in vars(module).items()
                if key not in _USUAL and _is_plain(value)
            )

    def changed(self) -> dict[_Place, Any]:
        """Return those that are not as before the first step."""
        count = sum(map(len, self._modules.values()))
        if count != self._count:  # One has got others since.
            self._places = [
                (name, key)
                for name, held in self._modules.items()
                for key, value in held.items()
                if key not in _USUAL and (_is_plain(value) or (name, key) in self._first)
            ]
            self._count = count
        now = {(name, key): self._modules[name].get(key) for name, key in self._places}
        first = self._first
        return {p: v for p, v in now.items() if _is_plain(v) and first.get(p, _NONE) != v}

    def put_changed(self, changed: dict[_Place, Any]) -> None:
        """Bring all to what changed() has returned; what came since stays."""
        for (name, key), value in {**self._first, **changed}.items():
            held = self._modules.get(name)
            if held is not None and _is_plain(held.get(key)):
                held[key] = value


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN and (type(value) is not str or len(value) <= _LONGEST)
