"""The versions of a state: opened, begun in each generation, committed or void.

A face says what a version holds (fill, restore) and how its ranks greet each other.
"""

from __future__ import annotations

import abc
import struct
from typing import Any

from holdfast._core import Session
from holdfast._errors import LeftError, MarkedError
from holdfast._makers import Makers, change_of
from holdfast._replicas import Replicas
from holdfast._say import say


class Versions(abc.ABC):
    """The versions of one state. Not thread-safe."""

    session: Session
    replicas: Replicas
    repairs = 0  # How often compare() has set replicas to other values.
    _said = ""  # By see_makers().
    greeted = 0  # The generation whose ranks have greeted each other.

    @abc.abstractmethod
    def fill(self, view: memoryview) -> None:
        """Write all that this rank begins with, version 0."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Bring everything to the last version."""

    @abc.abstractmethod
    def greet(self) -> bool:
        """Exchange with a new generation's ranks what each knows. False: a fault came."""

    @abc.abstractmethod
    def repair(self, which: list[int]) -> None:
        """Set these replicas, by their places, to the values that the last version has of them."""

    @abc.abstractmethod
    def flip(self, which: int, byte: int, bit: int) -> None:
        """Flip a bit of what the program trains on, where a replica, by its place, comes from."""

    def reformed(self) -> None:
        """Bring everything to the last version, after a fault. A face may do more."""
        self.restore()

    def open(self, session: Session) -> None:
        """Wait for the other ranks, and bring everything to the version that all have."""
        self.session = session
        self.replicas = Replicas(session, self.flip)
        while session.meet():
            self.fill(session.private(0))
        self.restore()

    def see_makers(self, made_by: Makers) -> None:
        """Say, on one rank, if other versions than this process's have made what is restored.

        A version of this job never differs. A snapshot may.
        """
        change = change_of(made_by)
        first = self.session.world.rank == 0 and not self.session.rehearses
        if change and change != self._said and first:
            say(
                f"this state was made with {change}: it is the same state, but what is made of it "
                "may have other bits"
            )
        self._said = change

    @property
    def last(self) -> memoryview:
        """The last version, to be read."""
        return self.session.private(self.session.version)

    @property
    def next(self) -> memoryview:
        """The version under way, to be filled."""
        return self.session.private(self.session.version + 1)

    def begin_version(self) -> None:
        """Begin a version; give up one that is open. In a new generation, greet its ranks first."""
        while True:
            if self.session.begin_step():
                self.reformed()
            self.compare()
            if self.session.generation == self.greeted or self.session.rehearses:
                return
            if self.greet():
                self.greeted = self.session.generation
                return

    def compare(self, at_end: bool = False) -> None:
        """Compare the replicas if it is time. With `at_end`: call it after a loop's last step."""
        repaired = self.replicas.compare(at_end)
        if repaired:
            self.repairs += 1
            self.repair(repaired)


def say_void(n: int, rank: int) -> None:
    """Say, on one rank, that step n is made again."""
    if rank == 0:
        say(f"step {n} was void, it is made again")


def tell(session: Session, form: struct.Struct, *mine: Any) -> list[tuple[Any, ...]]:
    """Exchange `mine`; return what each rank gave, in rank order. MarkedError: a fault came."""
    world = session.world
    everyone = bytearray(form.size * world.size)
    with session.uncompared():  # A rehearsal has other times in it.
        world.all_gather(form.pack(*mine), form.size, everyone)
    return list(form.iter_unpack(everyone))


def told(session: Session, form: struct.Struct, *mine: Any) -> list[tuple[Any, ...]] | None:
    """Do as tell() does. None: a fault came. LeftError: a rank has ended its training."""
    try:
        return tell(session, form, *mine)
    except LeftError:
        raise
    except MarkedError:
        return None
