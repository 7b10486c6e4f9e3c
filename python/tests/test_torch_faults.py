"""Faults that are no plain death, told from the traces: how long they take, and whom they delay."""
# With --ci: stopped and slow processes, one job at a time.
# To be run alone: how soon a fault is known, and steps while the scheduler is away.

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch_job import Job, needs_torch
from torch_warm import calm

pytestmark = [pytest.mark.kill, needs_torch]

Lines = list[dict[str, Any]]
CONFIG: dict[str, Any] = {"samples": 960, "wait": 0.02}


@pytest.fixture(scope="module", name="calm")
def calm_once(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """Return the results of a run without faults."""
    return calm(tmp_path_factory.mktemp("calm") / "job", CONFIG)


def events(trace: Lines, name: str, after: int = 0) -> Lines:
    return [line for line in trace if line["event"] == name and line["t_ns"] > after]


def steps(trace: Lines, rank: int) -> list[int]:
    """Return when a rank's steps were done."""
    return [line["t_ns"] for line in events(trace, "step") if line["rank"] == rank]


@pytest.mark.parametrize("spares", [0, 1])
def test_torch_a_stopped_worker_is_replaced_without_a_setting(
    tmp_path: Path, calm: Any, spares: int
) -> None:
    began = time.monotonic_ns()
    job = Job(tmp_path / "job", {**CONFIG, "hold": 5}, spares=spares)
    try:
        if spares:
            job.until(lambda trace: events(trace, "waiting"), "a spare that is ready")
        (job.folder / "go").touch()
        stopped = job.kill_at(1, 7, how=signal.SIGSTOP)
        at = time.monotonic_ns()
        results = job.end()
    finally:
        job.stop()
    assert results == calm
    assert not Path(f"/proc/{stopped}").exists()
    assert [report["ranks"] for report in job.recoveries()] == [[1]]
    trace = job.trace()
    (known,) = (line["detected_ns"] for line in events(trace, "fault"))
    all_go_on = max(next(t for t in steps(trace, rank) if t > known) for rank in (0, 1))
    first_step = max(steps(trace, rank)[0] for rank in (0, 1))
    # Half a second, where the machine has time for it: else by as much later as a step may be.
    made = [t for t in steps(trace, 0) if t < at]
    late = max(b - a for a, b in itertools.pairwise(made))
    assert (known - at) / 1e9 < 1.5 + 10 * late / 1e9
    # A spare has no start-up; without one it is the program's own, whatever that is here.
    own = 0.0 if spares else (first_step - began) / 1e9
    assert (all_go_on - at) / 1e9 < 2.0 + own + 20 * late / 1e9


def kill_scheduler(job: Job) -> tuple[int, int]:
    """Kill the scheduler; return when, and when another one served."""
    victim = job.scheduler()
    os.kill(victim, signal.SIGKILL)
    at = time.monotonic_ns()

    def another(trace: Lines) -> Lines:
        return [e for e in events(trace, "start", at) if e["role"] == "scheduler"]

    return at, int(job.until(another, "another scheduler")[0]["t_ns"])


def test_torch_no_step_waits_for_the_scheduler_and_a_fault_right_after_its_death_is_recovered(
    tmp_path: Path, calm: Any
) -> None:
    job = Job(tmp_path / "job", CONFIG)
    outages = []
    try:
        job.kill_at(0, 5, how=signal.SIGCONT)  # Only waits for the step.
        while max(outages, default=0) < 3 and len(outages) < 5:
            away, served = kill_scheduler(job)
            trace = job.trace()
            # On a busy machine an outage may be too short for steps.
            outages.append(
                min(sum(away < t <= served for t in steps(trace, rank)) for rank in (0, 1))
            )
        os.kill(scheduler := job.scheduler(), signal.SIGKILL)
        killed = job.kill_at(1, 0)
        both = time.monotonic_ns()
        results = job.end()
    finally:
        job.stop()
    assert results == calm
    # The first deaths: one step may have been complete but for its end, a third was begun after it.
    assert max(outages) >= 3, outages
    # The last: nobody serves when the worker dies.
    trace = job.trace()
    again = [line for line in events(trace, "start", both) if line["role"] == "scheduler"]
    assert len(again) == 1 and again[0]["pid"] != scheduler
    assert [report["ranks"] for report in job.recoveries()] == [[1]]
    assert killed in {line["pid"] for line in events(trace, "start")}
