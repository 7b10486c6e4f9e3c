"""Check that replicas, the tensors that DistributedDataParallel keeps equal, stay equal.

Ranks drift apart if one of them alone changes a parameter, or steps its optimizer differently.
Digests of the replicas are compared in the first step of a generation, at the end of each pass over
data, and every k steps in between. k is chosen so that this costs a thousandth of the steps' time.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

from torch import Tensor

from holdfast._core import Session
from holdfast._versions import told
from holdfast.torch._copies import digests_of
from holdfast.torch._engine import Engine
from holdfast.torch._kept import Kept

_SHARE: Final = 0.001  # Of the time of the steps, for comparing.
_MOST: Final = 100_000  # Steps between two comparisons.


class Drift:
    """Compares this rank's replicas with the others'."""

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
        self.next = 1  # The next step in which to compare, the same on all ranks.
        self._said: set[str] = set()
        self._took = 0.0  # Seconds that the last digest took.
        self._began = time.perf_counter()

    def common(self) -> set[int]:
        """Return the ids of the parameters that are the same on all ranks after each step.

        With HOLDFAST_DRIFT=warn there are none, since a job then goes on with ranks that differ.
        """
        groups = [ddp.process_group.size() for ddp in self._ddps]
        whole = all(size == self._engine.seat.world_size for size in groups)
        return set(self._ids) if whole and not self._may_differ() else set()

    @staticmethod
    def _may_differ() -> bool:
        return os.environ.get("HOLDFAST_DRIFT", "end") == "warn"

    def begin(self) -> None:
        """Note the time at which a step begins."""
        self._began = time.perf_counter()

    def digest(self) -> tuple[int, int]:
        """Return a digest of all replicas, and its cost in millionths of the step's time."""
        if not self._ids:
            return 0, 0
        began = time.perf_counter()
        digests = digests_of([tensor for _, tensor in self._walk()])
        whole = blake2b(bytes(digests), digest_size=8).digest()
        now = time.perf_counter()
        step = max(began - self._began, 1e-6)
        cost = int(1e6 * (now - began) / step)
        return int.from_bytes(whole, "little") | 1, cost  # 0 means no digest.

    def set_next(self, step: int, costs: list[int]) -> None:
        """Choose when to compare again, from the costs that all ranks report."""
        self.next = step + min(max(1, round(max(costs) * 1e-6 / _SHARE)), _MOST)

    def name_the_first(self, session: Session, step: int) -> None:
        """Name the first tensor that differs, and its rank. End the job unless the user goes on."""
        found = list(self._walk())
        mine = digests_of([tensor for _, tensor in found])
        rows = told(session, struct.Struct(f"<{len(mine)}Q"), *mine)
        if rows is None:
            return
        differing = next(
            (
                (name, rank)
                for i, (name, _) in enumerate(found)
                for rank, row in enumerate(rows)
                if row[i] != rows[0][i]
            ),
            None,
        )
        if differing is None:
            return
        name, rank = differing
        text = (
            f"rank {rank} holds other values of `{name}` than rank 0 in step {step}; they are to "
            "be the same on all ranks. Something changes them on one rank alone: draws without a "
            "common seed, clipping after the sum, a change of a parameter under `if rank == ...`. "
        )
        if not self._may_differ():
            raise self._engine.seat.worker.fail(f"{text}To go on all the same: HOLDFAST_DRIFT=warn")
        if name not in self._said:
            self._said.add(name)
            self._engine.seat.say_once(f"{text}It goes on (HOLDFAST_DRIFT=warn)")

    def _walk(self) -> Iterator[tuple[str, Tensor]]:
        for key, tensor in self._kept.walk(False):
            if key[0] == "model" and id(tensor) in self._ids:
                yield f"{key[1]}.{key[2]}", tensor
            elif key[0] == "state":
                parameter = self._kept.parameter_of(key[1], key[2])
                if id(parameter) in self._ids:
                    yield f"{key[1]}.state[{key[2]}].{key[3]}", tensor
