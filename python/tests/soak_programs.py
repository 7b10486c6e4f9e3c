"""Kill processes of drawn programs (drawn_programs.py), and compare with undisturbed runs.

    soak_programs.py [--kills N] [--seed S] [--journal FILE]

Trial T of seed S draws program 1000 S + T and runs it undisturbed, then without and with a spare,
with ranks killed at random places. All ranks must end with the digests of the undisturbed run: of
the model, the optimizer, and all else that is kept. If not, the program and its runs are left in a
folder, which is named.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import torch_job
from drawn_programs import Program, program
from soak_loop import soak
from torch_job import Job

torch_job.LIMIT_S = 900  # A soak may run on a busy machine.
KILLS = 3  # In each job.


def run(folder: Path, text: str, ranks: int, kills: list[Any], spares: int) -> Any:
    path = folder.with_suffix(".py")
    path.write_text(text)
    job = Job(folder, {"kills": kills}, ranks=ranks, spares=spares, program=path)
    try:
        return job.end()
    finally:
        job.stop()


def draw_kills(draw: random.Random, drawn: Program) -> list[list[Any]]:
    """Return kills as (rank, step or epoch, place): most in steps, and at their end."""
    places = ["begin", "forward", "update", "end", "end", "end", "done"]
    places += 2 * drawn.places
    kills: list[list[Any]] = []
    for i in range(KILLS):
        place = draw.choice(places)
        most = {"done": 1, **dict.fromkeys(drawn.places, drawn.epochs)}
        first = 0 if place in most else 1
        kills.append([i % drawn.ranks, first + draw.randrange(most.get(place, drawn.steps)), place])
    return kills


def trial(number: int, seed: int, folder: Path, calm: dict[str, Any]) -> dict[str, Any]:
    which = 1000 * seed + number
    draw, drawn = random.Random(f"kills {which}"), program(which)
    expected = run(folder / f"calm-{which}", drawn.text, drawn.ranks, [], 0)
    assert sorted(expected) == list(range(drawn.ranks)), f"program {which} undisturbed: {expected}"
    victims: list[str] = []
    for spares in (0, 1):
        kills = draw_kills(draw, drawn)
        path = folder / f"killed-{which}-{spares}"
        results = run(path, drawn.text, drawn.ranks, kills, spares)
        assert results == expected, (
            f"program {which}, {spares} spares, {kills}: {results}, undisturbed {expected}"
        )
        # Not all kills are made: a loop that is left early does not come to each place.
        done = [kills[int(file.name.split("-")[1])] for file in path.glob("killed-*")]
        victims += [f"{'rank 0' if rank == 0 else 'another rank'}, {at}" for rank, _, at in done]
        shutil.rmtree(path)
    shutil.rmtree(folder / f"calm-{which}")
    return {"trial": number, "program": which, "victims": victims}


if __name__ == "__main__":
    soak("soak_programs", 200, trial)
