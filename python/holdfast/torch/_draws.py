"""See whether a data set draws from a generator of its own, which no void step sets back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch

from holdfast._errors import UserError
from holdfast._vars import dumps
from holdfast.torch._others import contents_of, is_common, is_generator
from holdfast.torch._random import Seeds

_FEW: Final = 32  # Parts of a list that are looked at.


class OwnGenerators:
    """The generators that a data set holds. A replay, or a successor, would draw otherwise."""

    def __init__(self, dataset: Any) -> None:
        """Look for them in the attributes of a data set; None: there is none."""
        self._name = type(dataset).__name__
        self._generators = _generators_in(dataset)

    def asked(self, seed: Seeds, ask: Callable[[], Any]) -> Any:
        """Return what `ask` gives under a seed. UserError: one of these went on meanwhile."""
        seed.set()
        if not self._generators:
            return ask()
        before = self._marks()
        given = ask()
        after = self._marks()
        if after == before:
            return given
        seed.set()
        ask()
        if self._marks() != after:
            raise UserError(
                f"the data set {self._name} drew an item from a generator of its own, which goes "
                "on from item to item, so a fault would change the data: draw from torch, random "
                "or numpy.random, which are set for each item, or derive its generator from the "
                "index: default_rng(index)"
            )
        self._generators = []  # It is set for each item.
        return given

    def _marks(self) -> list[bytes]:
        return [dumps(contents_of(generator)) for generator in self._generators]


def _generators_in(holder: Any, depth: int = 4) -> list[Any]:
    """Return the generators in the attributes of a data set and of what it holds."""
    if is_generator(holder):
        return [] if is_common(holder) else [holder]
    if not depth or isinstance(holder, (type, torch.Tensor, torch.nn.Module)):
        return []
    parts = list((getattr(holder, "__dict__", None) or {}).values())
    if isinstance(holder, (list, tuple)) and len(holder) <= _FEW:
        parts = list(holder)
    return [found for part in parts for found in _generators_in(part, depth - 1)]
