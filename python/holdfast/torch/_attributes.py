"""Numbers and short texts that the modules of a kept model have as attributes.

`self.calls += 1` in forward(), as for a temperature that falls, is part of what a step depends on.
Tensors belong into buffers: register_buffer().
"""

from __future__ import annotations

from typing import Any, Final

import torch

_USUAL: Final = frozenset(vars(torch.nn.Module()))
_PLAIN: Final = (bool, int, float, complex, str, type(None))
_LONGEST: Final = 256  # Of a text.
_NONE: Final = object()

Place = tuple[str, str]  # Names of a module and of its attribute.


class Attributes:
    """Those of modules whose classes are not PyTorch's own."""

    def __init__(self) -> None:
        """Know no module."""
        self._modules: dict[str, dict[str, Any]] = {}  # Their attributes, as they are.
        self._first: dict[Place, Any] = {}  # Before the first step.

    def add(self, name: str, module: torch.nn.Module) -> None:
        """Take up a module as it is before the first step."""
        own = {kind.__module__.split(".")[0] for kind in type(module).__mro__}
        if own - {"torch", "builtins", "abc", "typing"}:
            self._modules[name] = vars(module)
            self._first.update({(name, key): v for key, v in _plain(vars(module))})

    def changed(self) -> dict[Place, Any]:
        """Return those that are not as before the first step."""
        return {
            (name, key): value
            for name, held in self._modules.items()
            for key, value in _plain(held)
            if self._first.get((name, key), _NONE) != value
        }

    def put_changed(self, changed: dict[Place, Any]) -> None:
        """Bring all to what changed() has returned; what came since stays."""
        for (name, key), value in {**self._first, **changed}.items():
            held = self._modules.get(name)
            if held is not None and _is_plain(held.get(key)):
                held[key] = value


def _plain(held: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, value) for key, value in held.items() if key not in _USUAL and _is_plain(value)]


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN and (type(value) is not str or len(value) <= _LONGEST)
