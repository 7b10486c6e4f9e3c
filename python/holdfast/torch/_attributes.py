"""What modules of the program's have in plain attributes, and change when they run.

`self.calls += 1` in forward(), as for a temperature that falls, is part of what a step depends on:
a step that is made again counts once, and a replacement goes on with the number. So is a hidden
state that one batch leaves for the next.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from holdfast.torch._forms import Room, brought_to, form_of, is_opaque
from holdfast.torch._optimizers import local

_USUAL: Final = frozenset(vars(torch.nn.Module()))
_PLAIN: Final = (bool, int, float, complex, str, type(None))
_LONGEST: Final = 256  # Of a text.
_NONE: Final = object()
ROOM: Final = 1 << 18  # Bytes of an image that tensors take at most.
_SMALL: Final = Room(1 << 15, 8, 8)
_Place = tuple[str, str]  # Names of a module and of its attribute.


class _First(NamedTuple):
    """Small tensors that were there before the first step."""

    value: Any
    writes: list[tuple[int, int]]
    form: Any


class Attributes:
    """Those of modules whose classes are not PyTorch's: numbers, short texts, small tensors."""

    def __init__(self) -> None:
        """Know no module."""
        self._modules: dict[str, dict[str, Any]] = {}  # Their attributes, as they are.
        self._places: list[_Place] = []
        self._count = 0  # Of all attributes when the places were looked for.
        self._first: dict[_Place, Any] = {}
        self._lent: set[int] = set()  # Memory of parameters and buffers.

    def add(self, name: str, module: torch.nn.Module) -> None:
        """Take up a module as it is before the first step."""
        for part in (*module._parameters.values(), *module._buffers.values()):
            if part is not None:
                self._lent.add(_memory(local(part)))
        own = {kind.__module__.split(".")[0] for kind in type(module).__mro__}
        if own - {"torch", "builtins", "abc", "typing"}:
            self._modules[name] = vars(module)
            for key, value in vars(module).items():
                if key not in _USUAL and _is_plain(value):
                    self._first[name, key] = value
                elif key not in _USUAL and _is_small(value):
                    self._first[name, key] = _First(value, _writes(value), form_of(value, _SMALL))

    def changed(self) -> dict[_Place, Any]:
        """Return those that are not as before the first step."""
        count = sum(map(len, self._modules.values()))
        if count != self._count:  # One has got others since.
            self._places = [
                (name, key)
                for name, held in self._modules.items()
                for key, value in held.items()
                if key not in _USUAL
                and (_is_plain(value) or _is_small(value) or (name, key) in self._first)
            ]
            self._count = count
        found, room = {}, ROOM
        for name, key in self._places:
            value, first = self._modules[name].get(key), self._first.get((name, key), _NONE)
            if _is_plain(value):
                if type(first) is _First or first != value:
                    found[name, key] = value
            elif _is_small(value) and not _is_as_first(value, first) and self._is_own(value):
                form = form_of(value, _SMALL)
                room -= sum(part.nbytes for part in _parts(value))
                if room >= 0 and not is_opaque(form):
                    found[name, key] = form
        return found

    def _is_own(self, value: Any) -> bool:
        return self._lent.isdisjoint(map(_memory, _parts(value)))

    def put_changed(self, changed: dict[_Place, Any]) -> None:
        """Bring all to what changed() has returned; what came since stays."""
        for (name, key), value in {**self._first, **changed}.items():
            held = self._modules.get(name)
            now = None if held is None else held.get(key)
            if held is None or not (_is_plain(now) or (_is_small(now) and self._is_own(now))):
                continue
            if type(value) is not _First:
                held[key] = brought_to(value)
            elif not _is_as_first(now, value):
                held[key] = value.value
                if _writes(value.value) != value.writes:
                    held[key] = brought_to(value.form)


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN and (type(value) is not str or len(value) <= _LONGEST)


def _is_small(value: Any) -> bool:
    """Whether it is a tensor, or a tuple of some as an LSTM's; but for parameters."""
    kinds = set(map(type, value)) if type(value) is tuple and len(value) <= 4 else {type(value)}
    return kinds == {Tensor} and all(
        _is_dense(part) and part.nbytes <= _SMALL.size and not part.is_inference()
        for part in _parts(value)
    )


def _is_dense(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested


def _memory(value: Tensor) -> int:
    try:
        return value.untyped_storage().data_ptr()
    except Exception:  # It has none, or not yet.
        return 0


def _parts(value: Any) -> tuple[Tensor, ...]:
    return value if type(value) is tuple else (value,)


def _writes(value: Any) -> list[tuple[int, int]]:
    return [(id(part), part._version) for part in _parts(value)]


def _is_as_first(value: Any, first: Any) -> bool:
    return type(first) is _First and value is first.value and _writes(value) == first.writes
