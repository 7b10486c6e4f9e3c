"""Watches the steps of a process of a run; holdfast.torch calls it (Engine.observer)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

from holdfast._digest import digest
from holdfast.verify._faults import Orderer
from holdfast.verify._note import Notes
from holdfast.verify._output import Output
from holdfast.verify._places import Drill, Places
from holdfast.verify._probe import Probe, sources
from holdfast.verify._served import Pushes, save_rows_for_verify


class Observer:
    """Notes digests after every step, makes steps void, and kills where the plan says so."""

    def __init__(
        self,
        seat: Any,
        notes: Notes,
        places: Places,
        output: Output,
        plan: dict[str, Any],
        pushes: Pushes,
        contents: Callable[[Any], Iterable[tuple[str, Any]]],
        kept: Callable[[Any], Iterable[Any]] = lambda _: (),
        made: Callable[[Any], None] = lambda _: None,
    ) -> None:
        """`plan`: what the parent has written; see _launch.py."""
        self._kept = kept  # Yields the objects that a state holds.
        self._made = made  # Called with a state that was made.
        self._pushes = pushes
        self._seat = seat
        self._contents = contents  # Yields the contents of a state, by name.
        self._notes = notes
        self._places = places
        self._probe = Probe()
        self._output = output
        self._void = bool(plan["void"])
        drills = [Drill(**drill) for drill in plan["drills"]]
        self._orderer = Orderer(drills, plan["folder"], plan["job"])
        self._last = int(plan["steps"] or 0)
        self._looked = False
        self._tried: set[int] = set()
        self._state: Any = None
        self._stop: Callable[[], None] = lambda: None

    def opened(self, state: Any) -> None:
        """Note that State was made, with state.n steps done."""
        self._state = state
        rank = int(self._seat.place.rank)
        self._notes.open(rank)
        self._output.open(rank)
        self._stop = state.stop
        done = int(state.n)
        self._tried = set(range(1, done + 1))
        self._notes("opened", n=done, digests=self._digests())
        self._output.done = done
        self._places.begin(rank, done)
        self._made(state)

    def began(self, n: int) -> None:
        """Note what the program holds as step n begins. A replay may begin with something else."""
        self._places.began()
        self._pushes.take()
        self._notes("begins", n=n, memory=self._look(sys._getframe(1)))

    def voids(self, n: int) -> bool:
        """Return whether step n has to be void, as on all ranks."""
        if not self._void or n in self._tried:
            return False
        self._tried.add(n)
        return True

    def was_void(self, n: int) -> None:
        """Note that step n was void, on purpose or by a kill."""
        self._places.in_step = False
        self._notes("void", n=n)

    def done(self, n: int) -> None:
        """Note what State and the program hold after step n."""
        counts = self._places.ended(n)
        if not self._looked:
            self._looked = True
            self._notes("sources", sources=sources(sys._getframe(1)))
        digests, memory = self._digests(), self._look(sys._getframe(1))
        epoch = getattr(self._state, "epoch", None)  # Not every face has it.
        more: dict[str, Any] = {"epoch": epoch} if type(epoch) is int else {}
        more["pushed"] = self._pushes.take()
        self._notes("done", n=n, digests=digests, memory=memory, places=counts, **more)
        self._output.done = n
        self._places.at("between steps")
        self._orderer.done(self._places.rank, n)
        if n == self._last:
            self._stop()

    def once_began(self, key: Any) -> None:
        """Tell the places that a state.once begins."""
        if not _is_ours(key):
            self._places.once_began()

    def once_done(self, key: Any) -> None:
        """Tell the places that a state.once has ended."""
        if not _is_ours(key):
            self._places.once_done()

    def epoch_began(self, epoch: int) -> None:
        """Do nothing: the beginning of an epoch is no place."""

    def epoch_ended(self, epoch: int) -> None:
        """Count a place between epochs: the epoch's body has ended."""
        self._places.at("between epochs")

    def ended(self) -> None:
        """Note that the training has ended well."""
        self._places.live = False
        self._notes("ended", n=self._places.done)

    def _look(self, frame: Any) -> dict[str, str | None]:
        return self._probe.look(frame, self._kept(self._state))

    def _digests(self) -> dict[str, str]:
        return {name: digest(thing) for name, thing in self._contents(self._state)}


def _is_ours(key: Any) -> bool:
    """Return whether state.epochs asks for this result, to learn of wishes to stop, or verify."""
    name = save_rows_for_verify.__qualname__
    return isinstance(key, tuple) and (key[-1:] == ("stop",) or key[2:3] == (name,))
