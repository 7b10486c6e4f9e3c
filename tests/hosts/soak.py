#!/usr/bin/env python3
"""Loses hosts, processes and links at random instants, again and again, and compares the bits each time.

soak.py --build BUILD [--jobs N] [--seed S]   what the hosts need: docs/testing-hosts.md. Each job has 2 x 2 ranks and a
spare host, and 4 faults. The seed chooses the faults, not the instants at which they meet the job.
"""
import argparse
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

import job_test
from common import fleet_of
from fleet import linux
from job_test import LIMIT_S, Job

STEPS = 800
FAULTS = 4


class Soaked:
    """A job on host 0 and on whichever others have its places; one more waits."""

    def __init__(self, folder, fleet):
        self.fleet = fleet
        self.job = Job(folder, fleet, 2, 2, steps=STEPS, pause=2000)
        self.parts, self.disturbed = {0: 0, 1: 1}, []  # Which part of the job each host runs.
        self.next_part = 2
        self.add_spare(2)
        self.kills = 0

    def add_spare(self, host):
        self.job.start(self.next_part, "--spare_host=True", at=host)
        self.parts[host] = self.next_part
        self.next_part += 1

    def renew(self, host):
        """The host is lost: a fresh one comes as a spare host, under a number of its own."""
        self.job.agents.pop(self.parts[host]).wait(LIMIT_S)
        self.add_spare(host)

    def lose_silently(self, rng):
        host = rng.choice([1, 2])
        self.fleet.kill(host)
        self.kills += 1
        self.fleet.up_again(host)
        self.renew(host)
        return f"host {host} lost silently"

    def lose_agent(self, rng):
        host = rng.choice([1, 2])
        self.job.agents[self.parts[host]].kill()
        self.kills += 1
        self.renew(host)
        return f"the agent of host {host} killed"

    def cut(self, rng):
        host, duration = rng.choice([1, 2]), rng.choice([0.05, 0.2, 0.5, 0.8, 1.5])
        self.fleet.cut(host)
        time.sleep(duration)  # How long the cut is, not a wait for something.
        self.fleet.heal()
        self.disturbed.append(host)
        return f"host {host} cut off for {duration} s"

    def cut_one_way(self, rng):
        pair, duration = rng.sample([0, 1, 2], 2), rng.choice([0.05, 0.3, 1.2])
        self.fleet.cut(*pair, one_way=True)
        time.sleep(duration)
        self.fleet.heal()
        self.disturbed += [host for host in pair if host != 0]
        return f"from host {pair[0]} to host {pair[1]} nothing for {duration} s"

    def kill_worker(self, rng):
        pids = self.job.pids(rng.choice([0, 1]))
        if pids:
            os.kill(rng.choice(pids), signal.SIGKILL)
        return "a worker killed"

    def kill_scheduler(self, rng):
        for pid in self.job.pids(0, "MS_SCHED"):
            os.kill(pid, signal.SIGKILL)
        return "the scheduler killed"

    def look_after_disturbed(self):
        """Who was cut off may have lost its places: its part has ended then, and it waits as a spare host from now on."""
        for host in set(self.disturbed):
            agent = self.job.agents.get(self.parts[host])
            if agent is not None and agent.poll() not in (None, 0):
                self.renew(host)

    def finish(self):
        end = time.monotonic() + LIMIT_S
        while self.job.agents[0].poll() is None and time.monotonic() < end:
            self.look_after_disturbed()
            time.sleep(0.1)
        code = self.job.ended(self.job.agents[0], time.monotonic() + 0.1)
        if code != 0:
            raise SystemExit(f"the job: {code}\n{self.job.logs()}")
        return [(self.job.out / f"rank-{rank}").read_bytes() for rank in range(4)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    arguments = parser.parse_args()
    if os.environ.get("HOLDFAST_TEST_WITHOUT_HOSTS") == "1" and (why := linux.lacking()):
        print(f"not run: {why}")
        return
    job_test.BUILD = arguments.build.resolve()
    rng = random.Random(arguments.seed)
    print(f"seed {arguments.seed}", flush=True)
    kills = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        expected = Job(folder / "one", None, 1, 4, steps=STEPS, pause=0).wait()
        for number in range(arguments.jobs):
            with fleet_of(3, job_test.BUILD) as fleet:
                soaked = Soaked(folder / f"job-{number}", fleet)
                said = []
                for fault in range(FAULTS):
                    goal = STEPS * (fault + 1) // (FAULTS + 1) + rng.randrange(STEPS // 20)
                    end = time.monotonic() + LIMIT_S
                    while soaked.job.newest_step() < goal and soaked.job.agents[0].poll() is None:
                        soaked.look_after_disturbed()
                        if time.monotonic() > end:
                            sys.exit(f"job {number}, after {said}: step {goal} did not come\n{soaked.job.logs()}")
                        time.sleep(0.02)
                    what = rng.choice([soaked.lose_silently, soaked.lose_silently, soaked.lose_agent, soaked.cut, soaked.cut_one_way,
                                       soaked.kill_worker, soaked.kill_scheduler])
                    time.sleep(rng.random() * 0.02)
                    said.append(what(rng))
                same = soaked.finish() == expected
                kills += soaked.kills
                print(f"job {number}: {'; '.join(said)}: {'equal bits' if same else 'OTHER BITS'}", flush=True)
                if not same:
                    sys.exit(1)
    print(f"{kills} hosts lost, all bits equal")


if __name__ == "__main__":
    main()
