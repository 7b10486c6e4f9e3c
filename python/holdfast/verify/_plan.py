"""Decides which runs are made, and where processes are killed in them.

This is pure: the same record of an undisturbed run gives the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.verify._places import BETWEEN, IN_STEP, Kill
from holdfast.verify._records import Record


@dataclass(frozen=True)
class Order:
    """One run of the program."""

    name: str  # The name of its folder.
    title: str  # For people.
    void: bool = False
    spares: str = "0"
    kills: tuple[Kill, ...] = field(default=())


UNDISTURBED: Final = Order("undisturbed", "undisturbed")
AGAIN: Final = Order("again", "undisturbed once more")
VOID: Final = Order("void", "every step void once", void=True)
# The kills of a quick look: a place, and which rank is killed there.
_QUICK: Final = (
    ("forward", -1),
    ("update", 0),
    ("between steps", -1),
    ("evaluation", 0),
    ("save", 0),
)


def kill_runs(record: Record, spares: Sequence[str], quick: bool) -> list[Order]:
    """Return the runs with kills: one per rank and number of spares, or one run if `quick`."""
    ranks = sorted(record.ranks)
    if quick:
        kills: list[Kill] = []
        for place, at in _QUICK:
            kills += _kills(record, ranks[at], (place,), len(kills), len(kills), len(_QUICK))
        title = f"kills, {_spares(spares[0])}"
        return [Order(f"kills-{spares[0]}", title, spares=spares[0], kills=tuple(kills))]
    orders = []
    for number in spares:
        for rank in ranks:
            places = (*IN_STEP, *BETWEEN)
            kills = _kills(record, rank, places, 0, rank, len(places) + 1)
            title = f"kills of rank {rank}, {_spares(number)}"
            name = f"kills-{rank}-{number}"
            orders.append(Order(name, title, spares=number, kills=tuple(kills)))
    return orders


def _spares(number: str) -> str:
    return {"0": "no spare", "1": "one spare"}.get(number, f"{number} spares")


def _kills(
    record: Record, rank: int, places: Sequence[str], first: int, spread: int, of: int
) -> list[Kill]:
    """Return one kill of the rank at each of `places` that the program has.

    The kills are spread over the steps, which are cut into `of` parts; the first is in part
    `spread`.
    """
    own = record.ranks[rank]
    kills: list[Kill] = []
    steps = record.steps
    for index, place in enumerate(places):
        if place in IN_STEP:
            having = [n for n in range(1, steps + 1) if own.places.get(n, {}).get(place)]
            if not having:
                continue
            # Take neither the first nor the last step if there are others.
            inner = having[1:-1] or having
            n = inner[_spot(len(inner), index + spread, of)]
            done, nth = n - 1, own.places[n][place] // 2
        else:
            past = [p for p in own.past if p.place == place and p.done > 0]
            early = [p for p in past if p.done < steps] or past
            if not early:
                continue
            spot = _spot(len(early), index + spread, of)
            if place == "save":
                early, spot = past, 0 if rank % 2 == 0 else len(past) - 1
            done, nth = early[spot].done, early[spot].nth
        kills.append(Kill(first + len(kills), rank, place, done, nth))
    return kills


def _spot(count: int, index: int, of: int) -> int:
    return min(count - 1, (index % of) * count // of)
