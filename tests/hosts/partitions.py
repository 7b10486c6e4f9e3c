#!/usr/bin/env python3
"""Cuts links between hosts in random shapes, again and again, and compares the bits each time.

partitions.py --build BUILD [--count N] [--seed S]   what the hosts need: docs/testing-hosts.md. Each job has 2 x 2 ranks
and a spare host, and as many partitions as fall into its steps. The seed chooses them, not the instants at which they meet the job.
"""
import sys
import tempfile
import time
from pathlib import Path

import job_test
from common import fleet_of
from job_test import Job, begin_long_run

HOSTS = (0, 1, 2)
STEPS, LAST = 4000, 2500  # No partition begins after step LAST: a host that is cut off when the job ends would miss the end.
STEPS_BETWEEN = 40
DURATIONS_S = (0.05, 0.2, 0.5, 0.7, 0.9, 1.5, 3.0)


def shape_of(rng):
    """A random partition: its name, and the arguments of `Fleet.cut` that make it."""
    host, pair = rng.choice(HOSTS), rng.sample(HOSTS, 2)
    return rng.choice([
        (f"host {host} cut off", [(host, None, False)]),
        (f"hosts {pair[0]} and {pair[1]} apart", [(*pair, False)]),
        (f"nothing from host {pair[0]} to host {pair[1]}", [(*pair, True)]),
        (f"nothing from host {host}", [(host, None, True)]),
        (f"nothing to host {host}", [(None, host, True)]),
        ("the scheduler cut from all", [(0, None, False)]),
        ("all hosts apart", [(0, 1, False), (0, 2, False), (1, 2, False)]),
        ("each hears the next one alone", [(0, 1, True), (1, 2, True), (2, 0, True)])])


def partition(fleet, rng):
    """Makes a partition, perhaps with a second one during it; returns words on it."""
    said = []
    for _ in range(rng.choice([1, 1, 1, 2])):
        name, cuts = shape_of(rng)
        for first, second, one_way in cuts:
            fleet.cut(first, second, one_way=one_way)
        duration = rng.choice(DURATIONS_S)
        time.sleep(duration)  # The length of the cut.
        said.append(f"{name} for {duration} s")
    fleet.heal()
    return ", then ".join(said)


def play(job, fleet, rng, most):
    """Makes partitions while the job makes its steps; returns words on them."""
    said = []
    while len(said) < most and (newest := job.newest_step()) < LAST:
        said.append(partition(fleet, rng))
        print(f"  {said[-1]}", flush=True)
        job.goes_on_to(newest + STEPS_BETWEEN + rng.randrange(20))
    return said


def main():
    most, rng = begin_long_run(__doc__, "--count", 1000)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        expected = Job(folder / "one", None, 1, 4, steps=STEPS, pause=0).wait()
        made = 0
        while made < most:
            with fleet_of(len(HOSTS), job_test.BUILD) as fleet:
                job = Job(folder / f"job-{made}", fleet, 2, 2, steps=STEPS, pause=4000)
                job.start(2, "--spare_host=True")
                said = play(job, fleet, rng, most - made)
                same = job.wait() == expected
                recoveries = len({event["generation"] for event in job.events("resume")}) - 1
            made += len(said)
            print(f"{made} partitions, {recoveries} recoveries in this job: {'equal bits' if same else f'OTHER BITS after {said}'}", flush=True)
            if not same:
                sys.exit(1)
    print(f"{made} partitions, all bits equal")


if __name__ == "__main__":
    main()
