"""Kill processes of PyTorch jobs at random instants, for long, and compare with undisturbed runs.

    soak_torch.py [--kills N] [--seed S] [--journal FILE]

Each trial draws a configuration, spares, victims (rank 0 and another, both at once, the scheduler
with a worker), and where they are killed: at a named place of the program, or from outside at any
instant. All ranks must end with the bits of the undisturbed run: parameters, buffers, optimizer
state, losses, steps. The journal has one line per trial. Lines of an earlier call count as done.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import torch_job
from soak_loop import soak
from torch_job import Job, draw_kills, run

torch_job.LIMIT_S = 900  # A soak may run on a busy machine.

# name: (ranks, configuration); 60 steps each.
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "ddp, loader workers": (2, {"loader_workers": 2}),
    "fsdp, 2 ranks": (2, {"kind": "fsdp"}),
    "ddp, static graph, many buckets": (
        2,
        {"ddp": {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.02}},
    ),
    "plain state, world of 1": (1, {"kind": "plain"}),
    "ddp, scaler, steps without exchange": (2, {"scaler": True, "window": 2, "optimizer": "SGD"}),
    "fsdp, 4 ranks": (4, {"kind": "fsdp"}),
    "ddp, sums beside the backward pass": (2, {"width": 512, "ddp": {"bucket_cap_mb": 0.5}}),
}
STEPS = 60
KILLS = 4  # In each trial.


def shaped(ranks: int, config: dict[str, Any]) -> dict[str, Any]:
    return {**config, "samples": 8 * ranks * STEPS // 2, "epochs": 2}


def strike(job: Job, draw: random.Random, ranks: int, count: int) -> list[str]:
    """Kill processes from outside at random instants; return what was killed."""
    victims: list[str] = []
    at = sorted(draw.sample(range(2, STEPS - 4), count))
    for i, step in enumerate(at):
        rank = i % ranks
        with contextlib.suppress(AssertionError, ProcessLookupError):  # The job may have ended.
            if draw.random() < 0.25:
                os.kill(job.scheduler(), signal.SIGKILL)
                victims.append("scheduler")
            job.kill_at(rank, step, delay=0.03 * draw.random())
            victims.append("rank 0" if rank == 0 else "another rank")
            if ranks > 1 and draw.random() < 0.2:
                job.kill_at((rank + 1) % ranks, 0)
                victims.append("one more at once")
    return victims


def trial(number: int, seed: int, folder: Path, calm: dict[str, Any]) -> dict[str, Any]:
    draw = random.Random(f"{seed}-{number}")
    name = list(CASES)[number % len(CASES)]
    ranks, config = CASES[name][0], shaped(*CASES[name])
    if name not in calm:
        calm[name] = run(folder / f"calm-{len(calm)}", config, ranks=ranks)
    inside = draw_kills(draw.randrange(1 << 30), ranks, STEPS, KILLS) if number % 2 else []
    spares = draw.choice([0, 1])
    config |= {"kills": inside, "wait": 0.01}
    path = folder / f"trial-{number}"
    job = Job(path, config, ranks=ranks, spares=spares)
    try:
        victims = [] if inside else strike(job, draw, ranks, KILLS)
        results = job.end()
    finally:
        job.stop()
    victims += [
        "rank 0" if mark.name.startswith("killed-0") else "another rank"
        for mark in path.glob("killed-*")
    ]
    if results != calm[name]:
        raise AssertionError(f"{results}\nundisturbed: {calm[name]}\n{job.logs()}")
    shutil.rmtree(path)
    return {"trial": number, "case": name, "spares": spares, "victims": victims}


if __name__ == "__main__":
    soak("soak_torch", 200, trial)
