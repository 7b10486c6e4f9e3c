"""The place of a process in its job, and what of it is known without waiting. For both faces."""

from __future__ import annotations

import enum
import os
import select
from typing import Final

from holdfast._abi import lib
from holdfast._core import Place
from holdfast._say import say
from holdfast.job import init


class Phase(enum.Enum):
    """Who answers collectives, and what happens to one that a fault cut short."""

    EARLY = enum.auto()  # Before a State or a training: the other ranks, at a first start.
    ECHO = enum.auto()  # Nobody: a successor that has not reached the others' step, or a rehearsal.
    LIVE = enum.auto()  # The session's groups. A fault makes the step void.
    PLAIN = enum.auto()  # The session's groups, where nothing is kept: a fault is an error.


class Seat:
    """One process's part in its job. A spare waits for its place as late as possible."""

    def __init__(self) -> None:
        """Join the job."""
        self.job: Final = init()
        self.worker: Final = self.job.worker
        self._place: Place | None = None
        self._spare = self.worker.waits_spare
        self.rehearses: Final = self.worker.rehearses
        self._said: set[str] = set()

    @property
    def place(self) -> Place:
        """The place of this process in the job. A spare waits for it."""
        if self._place is None:
            self._place = self.job.place
        return self._place

    @property
    def rank(self) -> int:
        """The own rank. A spare waits for it, unless it is bound to a rank."""
        bound = self.worker.bound_rank if self.waits_spare else None
        return self.place.rank if bound is None else bound

    @property
    def place_known(self) -> bool:
        """Whether `place` is known already, so that asking for it does not wait."""
        return self._place is not None

    @property
    def world_size(self) -> int:
        """The number of ranks. If the environment has it, nothing is waited for."""
        if self._place is None and self.worker.solo:
            return 1
        given = os.environ.get("MS_WORKER_NUM", "")
        return int(given) if self._place is None and given.isdigit() else self.place.world_size

    @property
    def servers(self) -> int:
        """The number of parameter servers. Not waited for."""
        return int(lib.hf_servers(self.worker.handle))

    @property
    def waits_spare(self) -> bool:
        """Whether this process is a spare that has not got its place yet."""
        return self._spare and self._place is None

    def place_is_due(self) -> bool:
        """Whether a spare that waits can have its place now, or is not needed any more."""
        place = int(os.environ["HOLDFAST_SPARE_FD"])
        return bool(select.select([place], [], [], 0)[0])

    @property
    def restarted(self) -> bool:
        """Whether this process is a successor. One restarted by hand, without an agent, is not."""
        return self._spare or self.rehearses or self.place.attempt > 1

    def say_once(self, text: str) -> None:
        """Say something at most once."""
        if text not in self._said:
            self._said.add(text)
            say(text)
