"""Which tensors are replicas: what DistributedDataParallel keeps the same on all ranks.

Ranks drift apart if one of them alone changes a parameter, or steps its optimizer differently. So
the parameters of modules that all ranks share, and the state of their optimizers, are compared.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast import _replicas
from holdfast.torch._engine import Engine
from holdfast.torch._kept import Kept
from holdfast.torch._optimizers import local
from holdfast.torch._plan import Key, Place, bytes_of


class Replicas:
    """The replicas of one State, and where the last version holds them."""

    def __init__(self, engine: Engine, kept: Kept, ddps: list[Any]) -> None:
        """`ddps`: the modules that hold replicas."""
        self._engine = engine
        self._kept = kept
        self._ddps = ddps
        self._ids = {
            id(parameter)
            for ddp in ddps
            if ddp.process_group.size() == engine.seat.world_size  # Else replicas on some ranks.
            for name, parameter in ddp.module.named_parameters()
            if name not in ddp.parameters_to_ignore
        }
        self._places: list[Place] = []
        self._table: list[_replicas.Place] = []
        self._keys: list[Key] = []  # Of the entries of the table.

    def common(self) -> set[int]:
        """Return the ids of the parameters that are the same on all ranks after each step.

        With HOLDFAST_DRIFT=warn there are none, since a job then goes on with ranks that differ.
        """
        groups = [ddp.process_group.size() for ddp in self._ddps]
        whole = all(size == self._engine.seat.world_size for size in groups)
        may_differ = os.environ.get("HOLDFAST_DRIFT", "end") == "warn"
        return set(self._ids) if whole and not may_differ else set()

    def at(self, places: list[Place]) -> list[_replicas.Place]:
        """Return the replicas in an image with these places."""
        if places is not self._places:
            of = {place.key: (place.offset, bytes_of(place)) for place in places}
            found = [(name, key) for name, key in self._walk() if key in of]
            self._places, self._keys = places, [key for _, key in found]
            self._table = [(name, *of[key]) for name, key in found]
        return self._table

    @torch.no_grad()
    def take(self, which: list[int], image: dict[Key, Tensor]) -> None:
        """Set replicas, by their places in the table, to their values in an image."""
        keys = {self._keys[i] for i in which}
        for key, tensor in self._kept.walk(False):
            if key in keys:
                local(tensor).copy_(image[key])

    def flip(self, which: int, byte: int, bit: int) -> None:
        """Flip a bit of a replica, by its place in the table, as a faulty memory does."""
        tensor = local(dict(self._kept.walk(False))[self._keys[which]])
        element, byte = divmod(byte, tensor.element_size())
        one = tensor.data  # Autograd and the counts of changes do not see it.
        for k, size in enumerate(tensor.shape):
            one = one[element // math.prod(tensor.shape[k + 1 :]) % size]
        one.reshape(1).view(torch.uint8)[byte] ^= 1 << bit

    def _walk(self) -> Iterator[tuple[str, Key]]:
        for key, tensor in self._kept.walk(False):
            if key[0] == "model" and id(tensor) in self._ids:
                yield f"{key[1]}.{key[2]}", key
            elif key[0] == "state":
                parameter = self._kept.parameter_of(key[1], key[2])
                if id(parameter) in self._ids:
                    yield f"{key[1]}.state[{key[2]}].{key[3]}", key
