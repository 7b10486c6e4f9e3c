"""What a version holds alike on all ranks: said once, compared from time to time, repaired."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Sequence
from typing import Any

from holdfast._abi import CReplica, Flip, check, lib
from holdfast._core import Session
from holdfast._waiting import interruptibly

Place = tuple[str, int, int]  # A replica's name, and its offset and size in the private bytes.


class Replicas:
    """The replicas of one session. Not thread-safe."""

    def __init__(self, session: Session, flip: Callable[[int, int, int], Any] | None) -> None:
        """Begin without any.

        `flip(i, byte, bit)`: a drill wants a bit of what replica i was copied from to be flipped.
        """
        self._session = session
        self._flip = flip and Flip(lambda _, *at: (flip(*at), 1)[1])  # C calls it.
        self._places: Sequence[Place] = ()
        self._ahead = 0  # By how much versions exceed the numbers of steps.

    def hold(self, places: Sequence[Place], step: int) -> None:
        """Say what the last version holds alike with those of the other ranks.

        `step`: the number that people know this version by.
        """
        ahead = self._session.version - step
        if (places, ahead) == (self._places, self._ahead):
            return
        array = (CReplica * len(places))(*(CReplica(name.encode(), *at) for name, *at in places))
        if self._flip:
            lib.hf_flip_by(self._session.handle, self._flip, None)
        check(lib.hf_replicas(self._session.handle, array, len(places), step))
        self._places, self._ahead = places, ahead

    def compare(self, at_end: bool = False) -> list[int]:
        """Compare with the other ranks if it is time; return which of the places were repaired.

        The last version has the right values of these then. Call it on all ranks right after each
        begin_step() and, with `at_end`, after the last step of a loop. WorldError: the job is over.
        """
        if not lib.hf_comparison_due(self._session.handle, at_end):
            return []
        repaired = c.create_string_buffer(len(self._places) + 1)
        handle = self._session.handle
        interruptibly(lambda: check(lib.hf_compare_replicas(handle, repaired)))
        return [i for i, byte in enumerate(repaired.raw) if byte != 0]
