#!/usr/bin/env python3
"""All hosts of a job lose everything at random instants, again and again. The same ranks go on from the newest snapshot,
on one or two hosts as the draw has it, until the job has ended; each time the bits are compared.

power_cuts.py --build BUILD [--cuts N] [--seed S]   what the hosts need: docs/testing-hosts.md. The last step of a job
whose agents get SIGTERM instead is in a snapshot: that is every fourth end.
"""
import sys
import tempfile
import time
from pathlib import Path

import job_test
from common import fleet_of, newest
from job_test import LIMIT_S, Job, begin_long_run

STEPS = 600


def go_on(folder, fleet, rng, number, last):
    """A start of the job, cut after some time; returns the ranks' states if it has ended before."""
    snapshots = folder / "snapshots"
    hosts = rng.choice([1, 2])
    options = ("--snapshot", str(snapshots), "--snapshot_every", "10ms", "--resume", "auto", "--max_restarts", "0")
    before = newest(snapshots)
    job = Job(folder / f"start-{number}", fleet, hosts, 4 // hosts, steps=STEPS, pause=2000, more=options)
    cut = time.monotonic() + (LIMIT_S if last else rng.uniform(0.05, 1.5))
    while time.monotonic() < cut and any(agent.poll() is None for agent in job.agents.values()):
        time.sleep(0.005)
    if all(agent.poll() == 0 for agent in job.agents.values()):
        return job.wait()
    assert not last and {agent.poll() for agent in job.agents.values()} <= {None, 0}, job.logs()
    if rng.randrange(4) == 0:
        for agent in job.agents.values():
            agent.terminate()
        codes = {agent.wait(LIMIT_S) for agent in job.agents.values()}
        # -15: it did not heed signals yet. 1: it had heard of the other's end before.
        assert codes <= {0, 1, 143, -15} and codes != {1}, f"{codes}\n{job.logs()}"
        assert newest(snapshots) >= job.newest_step(), f"{newest(snapshots)} of {job.newest_step()}\n{job.logs()}"
    else:
        for host in job.agents:
            fleet.kill(host)
        for host, agent in job.agents.items():
            agent.wait(LIMIT_S)
            fleet.up_again(host)
    assert newest(snapshots) >= before, f"{newest(snapshots)} after {before}"
    assert not before or "begins anew" not in job.logs(), job.logs()
    return None


def main():
    cuts, rng = begin_long_run(__doc__, "--cuts", 200)
    made = jobs = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        expected = Job(Path(name) / "one", None, 1, 4, steps=STEPS, pause=0).wait()
        while made < cuts:
            folder = Path(name) / f"job-{jobs}"
            folder.mkdir()
            with fleet_of(2, job_test.BUILD) as fleet:
                for number in range(cuts - made + 1):
                    states = go_on(folder, fleet, rng, number, number == cuts - made)
                    if states is not None:
                        break
            made, jobs = made + number, jobs + 1
            if states != expected:
                sys.exit(f"job {jobs}: OTHER BITS")
            print(f"job {jobs}: {number} cuts, equal bits; {made} cuts in all", flush=True)


if __name__ == "__main__":
    main()
