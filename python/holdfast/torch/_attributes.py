"""What modules of the program's have in plain attributes, and change when they run.

`self.calls += 1` in forward(), as for a temperature that falls, is part of what a step depends on:
a step that is made again counts once, and a replacement goes on with the number.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from holdfast.torch._forms import NOTHING, PLAIN, Room, brought_to, fits, form_of

_USUAL: Final = frozenset(vars(torch.nn.Module()))
_SMALL: Final = Room(1 << 12, 1 << 9)
_Place = tuple[str, str]  # Names of a module and of its attribute.


class Attributes:
    """Those of modules whose classes are not PyTorch's."""

    def __init__(self) -> None:
        """Know no module."""
        self._modules: dict[str, dict[str, Any]] = {}  # Their attributes, as they are.
        self._places: list[_Place] = []
        self._count = 0  # Of all attributes when the places were looked for.
        self._first: dict[_Place, Any] = {}

    def add(self, name: str, module: torch.nn.Module) -> None:
        """Take up a module as it is before the first step."""
        own = (kind.__module__.split(".")[0] for kind in type(module).__mro__)
        if not {*own} - {"torch", "builtins", "abc", "typing"}:
            return
        self._modules[name] = vars(module)
        for key in vars(module).keys() - _USUAL:
            if (form := self._form(name, key)) is not NOTHING:
                self._first[name, key] = form

    def _form(self, name: str, key: str) -> Any:
        value = self._modules[name].get(key, NOTHING)
        return value if type(value) in PLAIN else form_of(value, _SMALL, depth=2)

    def _now(self) -> dict[_Place, Any]:
        count = sum(map(len, self._modules.values()))
        if count != self._count:  # One has got others since.
            places = ((n, key) for n, held in self._modules.items() for key in held.keys() - _USUAL)
            self._places = [p for p in places if self._form(*p) is not NOTHING]
            self._count = count
        return {place: self._form(*place) for place in self._places}

    def changed(self) -> dict[_Place, Any]:
        """Return the forms of those that are not as before the first step."""
        first = self._first
        return {
            place: form
            for place, form in self._now().items()
            if form is not NOTHING and first.get(place, NOTHING) != form
        }

    def put_changed(self, changed: dict[_Place, Any]) -> None:
        """Bring all to what changed() has returned."""
        now = self._now()
        for (name, key), form in {**self._first, **changed}.items():
            held = self._modules.get(name)
            if held is None or now.get((name, key), NOTHING) == form:
                continue
            if fits(form, old := held.get(key, NOTHING)):
                held[key] = brought_to(form, old)
        for name, key in now.keys() - self._first.keys() - changed.keys():
            del self._modules[name][key]
