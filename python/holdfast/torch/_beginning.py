"""At hf.init(), give a successor the random generators that its rank's first process began with.

A program that seeds nothing draws its data or its parameters from the states with which the
generators of torch, Python and NumPy start. A rank's first process keeps these states as a
key-value of the job.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final

from holdfast._errors import Error, UserError
from holdfast._vars import raw_bytes
from holdfast.torch._engine import Engine
from holdfast.torch._random import Seeds, get_states, seeds_of_the_program, set_states

_WAIT_S: Final = 0.02  # Between two looks of a spare whether it has its place.


def begin_as_the_first(engine: Engine) -> None:
    """Take over the generators of this rank's first process, or save them if this is the first."""
    if engine.seat.worker.solo:
        return
    if not engine.seat.waits_spare or engine.seat.place_is_due():
        _take_over(engine, engine.seat.place.rank)
        return
    rank = engine.seat.worker.bound_rank
    left = _left_by_ranks(engine, range(engine.seat.world_size) if rank is None else [rank])
    if None not in left and len(set(left)) == 1:
        set_states(pickle.loads(left[0] or b""))
        return
    # Ranks differ, and the spare does not know its rank yet. What it draws until then is wrong.
    of_torch = [pickle.loads(raw or _now())[0] for raw in left]
    if len({raw_bytes(state) for state in of_torch}) == 1:
        set_states((of_torch[0], *get_states()[1:]))
    began = seeds_of_the_program()

    def see(mine: Seeds, of_the_first: Seeds) -> None:
        own = zip(mine, of_the_first, began, strict=True)
        if any(now not in (first, then) for now, first, then in own):
            raise Error(  # A UserError would end the job, but another spare may succeed.
                "this spare drew random numbers between hf.init() and hf.State(...), before it had "
                "a rank, and the ranks began with different generators: it would go on with other "
                "data than the process it replaces, so another one is started. Seed torch, random "
                "and numpy.random alike on all ranks before that; or `--spares all`"
            )

    engine.see_beginning = see


def _take_over(engine: Engine, rank: int) -> None:
    mine = _now()
    with suppress(UserError):  # No room: a successor begins with other numbers.
        if (first := engine.early.first(f"seeds-{rank}", mine)) != mine:
            set_states(pickle.loads(first))


def _left_by_ranks(engine: Engine, ranks: Iterable[int]) -> list[bytes | None]:
    """Return what ranks have left, in a spare. Wait for all of them or for the spare's place."""
    left: dict[int, bytes | None] = dict.fromkeys(ranks)
    while True:
        missing = [rank for rank, raw in left.items() if raw is None]
        for rank in missing:
            left[rank] = engine.early.look(f"seeds-{rank}")
        if None not in left.values() or engine.seat.place_is_due():
            return list(left.values())
        engine.early.look(f"seeds-{missing[0]}", _WAIT_S)


def _now() -> bytes:
    states: tuple[Any, ...] = get_states()
    return pickle.dumps(states)
