"""Read the parameters of a rank whose program lets Holdfast make the update, as in C++."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.snapshots._arena import MOMENTS, OPTIMIZERS, Part
from holdfast.snapshots._safetensors import Raw


class Floats:
    """Parameters and the optimizer's moments by names. All are flat: an arena knows no shapes."""

    def __init__(self, part: Part, version: int) -> None:
        """`version`: of the snapshot."""
        self.step = version
        self._part = part

    def _region(self, which: int) -> list[Raw]:
        return [
            Raw(name, "float32", (elements,), content)
            for name, elements, content in self._part.floats(which)
        ]

    def raw(self) -> list[Raw]:
        """Return the parameters as bytes."""
        return self._region(1)

    def kept(self) -> dict[str, Callable[[], Any]]:
        """Return, by names, functions that return parameters and moments as bytes."""
        regions = ("", *(f" ({name})" for name in MOMENTS[self._part.layout.optimizer]))
        rows = {
            raw.name + kind: raw for i, kind in enumerate(regions) for raw in self._region(1 + i)
        }
        return {name: partial(rows.__getitem__, name) for name in rows}

    def rest(self) -> dict[str, Callable[[], Any]]:
        """Return, as kept() does, what the program has laid out itself."""
        own = self._part.private
        size = (len(own),)
        return {"private bytes": lambda: Raw("private bytes", "uint8", size, own)}

    def everything(self, without: set[str]) -> dict[str, Any]:
        """Return parameters and moments as tensors of torch."""
        optimizer = self._part.layout.optimizer
        moments = {name: _tensors(self._region(2 + i)) for i, name in enumerate(MOMENTS[optimizer])}
        found = {
            "model": _tensors(self._region(1)),
            "optimizer": {"kind": OPTIMIZERS[optimizer], "moments": moments},
            "step": self.step,
        }
        return {name: value for name, value in found.items() if name not in without}


def _tensors(rows: list[Raw]) -> dict[str, Any]:
    import torch

    found = {}
    for name, _, (elements,), content in rows:
        full = torch.empty(0) if not elements else torch.frombuffer(content, dtype=torch.float32)
        found[name] = full
    return found
