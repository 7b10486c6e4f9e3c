"""Kill processes of MindSpore jobs at random instants, for long, and compare with undisturbed runs.

    soak_mindspore.py [--kills N] [--seed S] [--journal FILE]

Each trial draws spares, victims (rank 0 and another, both at once, the scheduler with a worker),
and where they are killed: at a named place of the program, or from outside at any instant. All
checkpoints must be those of the undisturbed run, byte for byte, and no step may be missing or have
two losses. The journal has one line per trial. Lines of an earlier call count as done.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import mindspore_job
from mindspore_job import Job, digests, draw_kills, job, make_data
from soak_loop import soak

mindspore_job.LIMIT_S = 900  # A soak may run on a busy machine.

# name: (ranks, configuration, steps)
CASES: dict[str, tuple[int, dict[str, Any], int]] = {
    "graph": (2, {"graph": True}, 50),
    "pynative": (2, {"graph": False, "epochs": 1}, 25),
    "graph, augmented, Adam": (2, {"augment": True, "optimizer": "Adam", "schedule": True}, 50),
    "graph, 3 ranks": (3, {"graph": True}, 34),
}
KILLS = 3  # In each trial.


def scheduler(run: Job) -> int:
    """Return the process id of the job's scheduler."""
    words = (run.folder / "logs" / "scheduler.log").read_text()
    return int(words.rsplit(", process ", 1)[1].split()[0].rstrip(",;"))


def strike(run: Job, draw: random.Random, ranks: int, steps: int) -> list[str]:
    """Kill processes from outside at random instants; return what was killed."""
    victims: list[str] = []
    at = sorted(draw.sample(range(2, steps - 4), KILLS))
    for i, step in enumerate(at):
        rank = i % ranks
        with contextlib.suppress(AssertionError, ProcessLookupError):  # The job may have ended.
            if draw.random() < 0.25 and run.at(rank)[1]:
                os.kill(scheduler(run), signal.SIGKILL)
                victims.append("scheduler")
            run.kill_at(rank, step, delay_s=0.05 * draw.random())
            victims.append("rank 0" if rank == 0 else "another rank")
            if draw.random() < 0.2:
                run.kill_at((rank + 1) % ranks, 0)
                victims.append("one more at once")
    return victims


def undisturbed(folder: Path, data: Path, ranks: int, config: dict[str, Any]) -> dict[str, str]:
    with job(folder, data, config, ranks=ranks) as run:
        run.end()
    return digests(folder)


def trial(number: int, seed: int, folder: Path, calm: dict[str, Any]) -> dict[str, Any]:
    draw = random.Random(f"{seed}-{number}")
    name = list(CASES)[number % len(CASES)]
    ranks, config, steps = CASES[name]
    data = folder / "data" / "train"
    if not data.exists():
        make_data(data)
    if name not in calm:
        calm[name] = undisturbed(folder / f"calm-{len(calm)}", data, ranks, config)
    inside = (
        draw_kills(draw.randrange(1 << 30), ranks, 2, steps - 4, KILLS)
        if draw.random() < 0.5
        else []
    )
    spares = draw.choice([0, 1])
    options = draw.choice([(), ("--rehearse",)]) if spares else ()
    path = folder / f"trial-{number}"
    with job(
        path,
        data,
        {**config, "kills": inside, "pause": 0.02},
        ranks=ranks,
        spares=None if options else spares,
        options=options,
    ) as run:
        victims = [] if inside else strike(run, draw, ranks, steps)
        run.end()
        logs = run.logs()
        losses: dict[int, set[str]] = {}
        for _, step, loss in run.steps():
            losses.setdefault(step, set()).add(loss)
    places = [int(mark.name.removeprefix("killed-")) for mark in path.glob("killed-*")]
    victims += ["rank 0" if inside[i][0] == 0 else "another rank" for i in places]
    if digests(path) != calm[name]:
        raise AssertionError(f"other checkpoints than undisturbed, in {path}\n{logs}")
    if sorted(losses) != list(range(1, steps + 1)) or any(len(s) > ranks for s in losses.values()):
        raise AssertionError(f"steps are missing or have other losses: {losses}\n{logs}")
    shutil.rmtree(path)
    return {"trial": number, "case": name, "spares": spares, "victims": victims}


if __name__ == "__main__":
    soak("soak_mindspore", 60, trial)
