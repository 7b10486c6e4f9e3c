"""Faults other than a death: a stopped process, and a scheduler that is away."""
# With --ci: stopped and slow processes, one job at a time.

from __future__ import annotations

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


def steps(trace: Lines, rank: int, after: int) -> Lines:
    return [line for line in events(trace, "step", after) if line["rank"] == rank]


@pytest.mark.parametrize("spares", [0, 1])
def test_torch_a_stopped_worker_is_replaced_without_a_setting(
    tmp_path: Path, calm: Any, spares: int
) -> None:
    job = Job(tmp_path / "job", {**CONFIG, "hold": 5}, spares=spares)
    try:
        if spares:
            job.until(lambda trace: events(trace, "waiting"), "a spare that is ready")
        (job.folder / "go").touch()
        stopped = job.kill_at(1, 7, how=signal.SIGSTOP)
        results = job.end()
    finally:
        job.stop()
    assert results == calm
    assert not Path(f"/proc/{stopped}").exists()
    (report,) = job.recoveries()
    assert report["ranks"] == [1]
    # The agent noticed it, long before the lease ended after half a minute.
    assert "was stopped by a signal and ended by its agent" in report["cause"]


def test_torch_no_step_waits_for_the_scheduler_and_a_fault_right_after_its_death_is_recovered(
    tmp_path: Path, calm: Any
) -> None:
    job = Job(tmp_path / "job", {**CONFIG, "hold": 25})
    try:
        job.kill_at(0, 5, how=signal.SIGCONT)  # Has no effect but to wait for the step.
        scheduler = job.scheduler()
        with job.without_its_agent():  # So that no other scheduler is started.
            os.kill(scheduler, signal.SIGKILL)
            at = time.monotonic_ns()
            # A step may have been nearly complete. The third was begun after the death.
            job.until(
                lambda trace: all(len(steps(trace, rank, at)) >= 3 for rank in (0, 1)),
                "a step without a scheduler",
            )
            (job.folder / "go").touch()
            killed = job.kill_at(1, 0)
            both = time.monotonic_ns()
        results = job.end()
    finally:
        job.stop()
    assert results == calm
    # No scheduler served when the worker died.
    trace = job.trace()
    again = [line for line in events(trace, "start", both) if line["role"] == "scheduler"]
    assert len(again) == 1 and again[0]["pid"] != scheduler
    assert [report["ranks"] for report in job.recoveries()] == [[1]]
    assert killed in {line["pid"] for line in events(trace, "start")}
