#!/usr/bin/env python3
"""Loses hosts, processes and links at random instants, again and again, and compares the bits each time.

soak.py --build BUILD [--jobs N] [--seed S]   what the hosts need: docs/testing-hosts.md. Each job has 2 x 2 ranks and a
spare host, and 4 faults; every second one has two parameter servers, too. The seed chooses the faults, not the instants at which they meet the job.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import job_test
from common import fleet_of
from job_test import LIMIT_S, Job, begin_long_run

STEPS = 800
FAULTS = 4


class Soaked:
    """A job on three hosts, one of them spare. A lost host is started again by the same command, as a cluster would do."""

    def __init__(self, folder, fleet, servers):
        self.fleet, self.options = fleet, ("--server_num", str(servers))
        self.job = Job(folder, fleet, 2, 2, steps=STEPS, pause=2000, keys=50 if servers else 0, more=self.options)
        self.job.start(2, *self.options, "--spare_host=True")
        self.kills = 0
        self.renewed = {}  # By host: the job's step at that time.

    def renew(self, host):
        self.renewed[host] = self.job.newest_step()
        self.job.agents.pop(host).wait(LIMIT_S)
        self.job.start(host, *self.options, *(["--spare_host=True"] if host == 2 else []))

    def lose_silently(self, rng):
        host = rng.choice([1, 2])
        self.fleet.kill(host)
        self.kills += 1
        self.fleet.up_again(host)
        self.renew(host)
        return f"host {host} lost silently"

    def lose_agent(self, rng):
        host = rng.choice([1, 2])
        self.job.agents[host].kill()
        self.kills += 1
        self.renew(host)
        return f"the agent of host {host} killed"

    def cut(self, rng):
        host, duration = rng.choice([1, 2]), rng.choice([0.05, 0.2, 0.5, 0.8, 1.5])
        self.fleet.cut(host)
        time.sleep(duration)  # The length of the cut.
        self.fleet.heal()
        return f"host {host} cut off for {duration} s"

    def cut_one_way(self, rng):
        pair, duration = rng.sample([0, 1, 2], 2), rng.choice([0.05, 0.3, 1.2])
        self.fleet.cut(*pair, one_way=True)
        time.sleep(duration)
        self.fleet.heal()
        return f"from host {pair[0]} to host {pair[1]} nothing for {duration} s"

    def kill_rank(self, rng):
        role = rng.choice(["MS_WORKER", "MS_PSERVER"])
        pids = self.job.pids(rng.choice([0, 1]), role)
        if pids:
            os.kill(rng.choice(pids), signal.SIGKILL)
        return f"a process killed that is {role}"

    def kill_scheduler(self, rng):
        for pid in self.job.pids(0, "MS_SCHED"):
            os.kill(pid, signal.SIGKILL)
        return "the scheduler killed"

    def move(self, rng):
        """Moves a host's ranks. This may be refused: no other host can take them now, or the host has none."""
        host = rng.choice([1, 2])
        ask = [str(job_test.BUILD / "bin/holdfast"), "move", f"host{host}"]
        self.fleet.popen(0, ask, env=self.job.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(LIMIT_S)
        return f"the ranks of host {host} moved"

    def finish(self):
        if (code := self.job.ended(self.job.agents[0], time.monotonic() + LIMIT_S)) != 0:
            raise SystemExit(f"the job: {code}\n{self.job.logs()}")
        for host, step in self.renewed.items():
            if step > STEPS * 2 // 3 and self.job.agents[host].poll() is None:
                self.job.agents.pop(host).kill()  # A host that came after the job had ended waits: end it.
        return self.job.wait()


def main():
    jobs, rng = begin_long_run(__doc__, "--jobs", 50)
    kills = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        expected = Job(folder / "one", None, 1, 4, steps=STEPS, pause=0).wait()
        with_rows = Job(folder / "rows", None, 1, 4, steps=STEPS, pause=0, keys=50, more=("--server_num", "1")).wait()
        for number in range(jobs):
            with fleet_of(3, job_test.BUILD) as fleet:
                servers = number % 2 * 2
                soaked = Soaked(folder / f"job-{number}", fleet, servers)
                for fault in range(FAULTS):
                    soaked.job.goes_on_to(STEPS * (fault + 1) // (FAULTS + 1) + rng.randrange(STEPS // 20))
                    what = rng.choice([soaked.lose_silently, soaked.lose_silently, soaked.lose_agent, soaked.cut, soaked.cut_one_way,
                                       soaked.move, soaked.kill_rank, soaked.kill_scheduler])
                    time.sleep(rng.random() * 0.02)
                    print(f"job {number}: " if fault == 0 else "; ", what(rng), sep="", end="", flush=True)
                same = soaked.finish() == (with_rows if servers else expected)
                kills += soaked.kills
                print(f": {'equal bits' if same else 'OTHER BITS'}", flush=True)
                if not same:
                    sys.exit(1)
    print(f"{kills} hosts lost, all bits equal")


if __name__ == "__main__":
    main()
