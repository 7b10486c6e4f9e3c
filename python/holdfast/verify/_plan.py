"""Decides which runs are made, and where processes are killed in them.

This is pure: the same record of an undisturbed run gives the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.verify._places import BETWEEN, IN_STEP, Drill, Kill
from holdfast.verify._records import Record


@dataclass(frozen=True)
class Order:
    """One run of the program."""

    name: str  # The name of its folder.
    title: str  # For people.
    void: bool = False
    spares: str = "0"
    kills: tuple[Kill, ...] = field(default=())
    drills: tuple[Drill, ...] = field(default=())


UNDISTURBED: Final = Order("undisturbed", "undisturbed")
AGAIN: Final = Order("again", "undisturbed once more")
VOID: Final = Order("void", "every step void once", void=True)
_Chosen = tuple[int, str, int | None]  # A rank, a place, and the server that it kills there.
_OF_SERVERS: Final = (*IN_STEP, *(place for place in BETWEEN if place != "save"))
# The kills of --quick: a place, and an index into the ranks.
_QUICK: Final = (
    ("forward", -1),
    ("update", 0),
    ("between steps", -1),
    ("evaluation", 0),
    ("save", 0),
)


def kill_runs(
    record: Record, spares: Sequence[str], quick: bool, servers: Sequence[int] = ()
) -> list[Order]:
    """Return the runs with kills: one per rank and number of spares, or one run if `quick`.

    Servers have no spares, so each of them has one run more; if `quick`, one is killed once.
    """
    ranks = sorted(record.ranks)
    if quick:
        chosen: list[_Chosen] = [(ranks[at], place, None) for place, at in _QUICK]
        there = [place for place in ("backward", *_OF_SERVERS) if _at(record, ranks[0], place)]
        chosen += [(ranks[0], there[0], server) for server in servers[:1]]
        title = f"kills, {_spares(spares[0])}"
        kills = _kills(record, chosen, 0, 1)
        return [Order(f"kills-{spares[0]}", title, spares=spares[0], kills=kills)]
    orders = []
    runs = [(number, rank) for number in spares for rank in ranks]
    for turn, (number, rank) in enumerate(runs):
        chosen = [(rank, place, None) for place in (*IN_STEP, *BETWEEN)]
        kills = _kills(record, chosen, turn, len(runs))
        title = f"kills of rank {rank}, {_spares(number)}"
        orders.append(Order(f"kills-{rank}-{number}", title, spares=number, kills=kills))
    for turn, server in enumerate(servers):
        chosen = [(ranks[0], place, server) for place in _OF_SERVERS]
        kills = _kills(record, chosen, turn, len(servers))
        title, name = f"kills of server {server}, {_spares(spares[0])}", f"kills-server-{server}"
        orders.append(Order(name, title, spares=spares[0], kills=kills))
    return orders


def epochs_of(record: Record, kills: Iterable[Kill]) -> set[int]:
    """Return the epochs of kills: that of the step under way, or else of the last step done."""
    epochs = record.epochs
    steps = [kill.done + (kill.place in IN_STEP) for kill in kills]
    return {epochs[n] for n in steps if n in epochs}


def _spares(number: str) -> str:
    return {"0": "no spare", "1": "one spare"}.get(number, f"{number} spares")


def _kills(record: Record, chosen: Sequence[_Chosen], turn: int, turns: int) -> tuple[Kill, ...]:
    """Return a kill for each chosen rank and place that the program has, spread over its steps.

    The steps are divided into as many parts as there are kills, with one kill in each part. In the
    next of the `turns` runs, each place moves to the next part, and somewhat later within it.
    """
    there = [(*one, found) for one in chosen if (found := _at(record, *one[:2]))]
    kills = []
    for number, (rank, place, server, found) in enumerate(there):
        part = (number + turn) % len(there)
        spot = len(found) * (part * turns + turn) // (len(there) * turns)
        if place == "save":
            spot = 0 if rank % 2 == 0 else len(found) - 1
        kills.append(Kill(number, rank, place, *found[spot], server))
    return tuple(kills)


def _at(record: Record, rank: int, place: str) -> list[tuple[int, int]]:
    """Return where a rank may be killed at a place: pairs of Kill.done and Kill.nth."""
    own, steps = record.ranks[rank], record.steps
    if place in IN_STEP:
        having = [n for n in range(1, steps + 1) if own.places.get(n, {}).get(place)]
        # Take neither the first nor the last step if there are others.
        return [(n - 1, own.places[n][place] // 2) for n in having[1:-1] or having]
    past = [(p.done, p.nth) for p in own.past if p.place == place and p.done > 0]
    if place == "save":
        return past
    return [(done, nth) for done, nth in past if done < steps] or past
