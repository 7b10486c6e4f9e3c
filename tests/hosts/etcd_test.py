#!/usr/bin/env python3
"""With etcd, a job over several hosts outlives its scheduler's host, and keeps its bits.

etcd_test.py --build BUILD [TEST...]   what the hosts need: docs/testing-hosts.md; and etcd (etcd-server)
"""
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import job_test
from common import fleet_of
from hosts_test import setUpModule  # noqa: F401
from job_test import Job

ETCD = 3  # The host of etcd, beside those of the job.
LEASE_S = 2
FEW, MANY = 300, 1500  # Steps. MANY take longer than the lease.
EXPECTED = {}  # By the number of steps: the state of each rank on one host.


class Etcd(unittest.TestCase):
    def setUp(self):
        # Hosts share all folders except /tmp and /dev/shm.
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir="/var/tmp")))

    def one_host(self, steps):
        if steps not in EXPECTED:
            EXPECTED[steps] = Job(self.folder / "one", None, 1, 4, steps=steps, pause=0).wait()
        return EXPECTED[steps]

    def with_etcd(self):
        """Hosts 0 and 1 for a job, spare host 2, and etcd on a host that is never lost."""
        fleet = self.enterContext(fleet_of(4, job_test.BUILD))
        self.fleet_ = fleet
        address = fleet.address(ETCD)
        client, peer = f"http://{address}:2379", f"http://{address}:2380"
        self.server = fleet.popen(ETCD, ["/usr/bin/etcd", "--data-dir", "/dev/shm/etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
                                         "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
                                         "--log-level", "error", "--logger", "zap"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(self.server.kill)
        return fleet, {"HOLDFAST_ETCD": client}

    def keys(self):
        """The keys that are left in etcd."""
        command = ["curl", "-s", f"http://{self.fleet_.address(ETCD)}:2379/v3/kv/range", "-d", '{"key":"Lw==","range_end":"MA=="}']
        return self.fleet_.run(ETCD, command, capture_output=True, text=True, timeout=10).stdout

    def status(self, host):
        command = [job_test.BUILD / "bin/holdfast", "status", "--json"]
        bare = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return self.fleet_.run(host, command, env=bare, capture_output=True, text=True, cwd="/", timeout=30).stdout.replace(" ", "")

    def begin(self, name, steps):
        """A job of 2 x 2 ranks with a spare host. Its other schedulers stand by."""
        fleet, env = self.with_etcd()
        job = Job(self.folder / name, fleet, 2, 2, env=env, steps=steps, pause=5000, hold=40)
        job.start(2, "--spare_host=True")
        job.until_ready(lambda: len(job.events("stands_by")) == 2 and len(job.events("waiting")) >= 2, "who stands by")
        job.until_step(60)
        return job

    @staticmethod
    def scheduler(job):
        """The pid of the job's first scheduler."""
        pids = [pid for pid in job.pids(0, "MS_SCHED") if b"HOLDFAST_STANDBY=1" not in (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")]
        return pids[0]

    @staticmethod
    def schedulers(job):
        """The start events of all schedulers that have served so far, in order of time."""
        return sorted((event for event in job.events("start") if event["role"] == "scheduler"), key=lambda event: event["t_ns"])

    def until_all_step(self, job, since_ns):
        """Waits until all ranks have made a step after a time; returns when."""
        first = {}

        def all_step():
            for event in job.events("step"):
                if event["t_ns"] > since_ns:
                    first.setdefault(event["rank"], event["t_ns"])
            return len(first) == 4
        job.until(all_step, "a step of each rank")
        return max(first.values())

    def test_undisturbed(self):
        expected = self.one_host(FEW)
        fleet, env = self.with_etcd()
        job = Job(self.folder / "whole", fleet, 2, 2, steps=FEW, env=env)
        job.start(2, "--spare_host=True")
        self.assertEqual(job.wait(), expected)
        self.assertNotIn('"kvs"', self.keys())
        self.assertEqual(job.events("takeover"), [])

    def test_the_schedulers_host_is_lost(self):
        expected = self.one_host(FEW)
        job = self.begin("lost", FEW)
        lost_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        self.fleet_.kill(0)
        job.agents.pop(0).wait()
        job.until(lambda: job.events("takeover"), "the takeover")
        taken_ns = job.events("takeover")[0]["t_ns"]
        stepped_ns = self.until_all_step(job, taken_ns)
        for host in (1, 2):
            self.assertIn('"generation":2', self.status(host))
        print(f"takeover {(taken_ns - lost_ns) / 1e6:.0f} ms after the loss (lease {LEASE_S} s); "
              f"all ranks had made a step {(stepped_ns - lost_ns) / 1e6:.0f} ms after it", file=sys.stderr)
        self.assertEqual(job.wait(), expected)
        self.assertLess(taken_ns - lost_ns, (LEASE_S + 2) * 1e9)
        self.assertNotIn('"kvs"', self.keys())

    def test_a_host_with_scheduler_and_server_may_be_lost(self):
        servers = ("--server_num", "2")
        expected = Job(self.folder / "one-rows", None, 1, 4, steps=FEW, pause=0, keys=50, more=servers).wait()
        fleet, env = self.with_etcd()
        job = Job(self.folder / "rows", fleet, 2, 2, env=env, steps=FEW, pause=2000, hold=40, keys=50, more=servers)
        job.start(2, *servers, "--spare_host=True")
        job.until_ready(lambda: len(job.events("stands_by")) == 2 and len(job.events("waiting")) >= 2, "who stands by")
        job.until_step(60)
        fleet.kill(0)
        job.agents.pop(0).wait()
        self.assertEqual(job.wait(), expected)
        self.assertEqual(len(job.events("takeover")), 1)

    def test_a_lost_schedulers_host_is_started_again_elsewhere(self):
        expected = self.one_host(FEW)
        fleet, env = self.with_etcd()
        job = Job(self.folder / "again", fleet, 2, 2, env=env, steps=FEW, hold=40)
        job.until_ready(lambda: len(job.events("stands_by")) == 1, "who stands by")
        job.until_step(60)
        fleet.kill(0)
        job.agents.pop(0).wait()
        job.start(0, at=2)  # At once, before another scheduler has taken over.
        self.assertEqual(job.wait(), expected)
        self.assertEqual(len(job.events("takeover")), 1)

    def test_killed_launchers_are_continued_in_the_run_of_the_journal(self):
        expected = self.one_host(MANY)
        fleet, env = self.with_etcd()
        job = Job(self.folder / "continued", fleet, 2, 2, env=env, steps=MANY, pause=2000, hold=40)
        job.until_ready(lambda: len(job.events("stands_by")) == 1, "who stands by")
        job.until_step(60)
        job.agents.pop(0).kill()
        job.until(lambda: job.events("takeover"), "the takeover")
        job.start(0)  # It has a run id of its own, and joins the run in the journal.
        job.until_step(job.newest_step() + 60)
        for host in (0, 1):
            job.agents.pop(host).kill()
        served = len(self.schedulers(job))
        job.start(0, "--continue")
        job.until(lambda: len(self.schedulers(job)) > served, "the scheduler of host 0")
        self.assertTrue(self.schedulers(job)[-1]["taken_back"], "the job begins anew")
        job.start(1, "--continue")
        self.assertEqual(job.wait(), expected)
        self.assertNotIn('"kvs"', self.keys())

    def test_what_has_ended_meanwhile_is_not_continued(self):
        expected = self.one_host(FEW)
        job = self.begin("ended", FEW)
        job.agents.pop(0).kill()
        self.assertEqual(job.wait(), expected)
        job.start(0, "--continue")
        self.assertEqual(job.agents[0].wait(60), 2)
        self.assertIn("it has ended meanwhile", job.logs())

    def test_a_scheduler_is_killed_and_etcd_is_away_for_longer_than_the_lease(self):
        expected = self.one_host(MANY)
        job = self.begin("away", MANY)
        os.kill(self.scheduler(job), signal.SIGKILL)
        killed_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        job.until(lambda: job.events("takeover"), "the takeover")
        self.assertLess(job.events("takeover")[0]["t_ns"] - killed_ns, 1e9, "without waiting for the lease's end")
        self.server.send_signal(signal.SIGSTOP)
        job.until(lambda: "may have ended, so this process ends" in job.logs(), "the end of the scheduler")
        step = job.newest_step()
        job.until_step(step + 50)  # These steps are made without a scheduler.
        self.server.send_signal(signal.SIGCONT)
        job.until(lambda: len(job.events("takeover")) == 2, "another takeover")
        os.kill(random.choice(job.pids(1)), signal.SIGKILL)
        self.assertEqual(job.wait(), expected)

    def test_a_scheduler_that_stands_still_has_lost_its_lease(self):
        expected = self.one_host(MANY)
        job = self.begin("still", MANY)
        stopped = self.scheduler(job)
        for pid in (job.agents[0].pid, stopped):  # Stop its agent too, which would replace it sooner.
            os.kill(pid, signal.SIGSTOP)
        stopped_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        job.until(lambda: job.events("takeover"), "the takeover")
        taken_ns = job.events("takeover")[0]["t_ns"]
        victim = random.choice(job.pids(1))
        os.kill(victim, signal.SIGKILL)
        for pid in (stopped, job.agents[0].pid):
            os.kill(pid, signal.SIGCONT)
        stepped_ns = self.until_all_step(job, time.clock_gettime_ns(time.CLOCK_MONOTONIC))
        steps = [e["t_ns"] for e in job.events("step") if e["rank"] == 0 and stopped_ns < e["t_ns"] < taken_ns]
        pause_ns = max(after - before for before, after in zip(steps, steps[1:], strict=False))
        print(f"takeover {(taken_ns - stopped_ns) / 1e6:.0f} ms after the stop (lease {LEASE_S} s); longest pause of a step meanwhile "
              f"{pause_ns / 1e6:.0f} ms; a worker killed then: all ranks had made a step {(stepped_ns - taken_ns) / 1e6:.0f} ms after the takeover", file=sys.stderr)
        self.assertEqual(job.wait(), expected)
        self.assertLess(taken_ns - stopped_ns, (LEASE_S + 2) * 1e9)
        # The scheduler learns it by its clock or from etcd, whichever comes first.
        self.assertRegex(job.logs(), "so this process ends: .*lease.*ended|lease in etcd may have ended, so this process ends")
        self.assertNotIn('"kvs"', self.keys())


if __name__ == "__main__":
    job_test.BUILD = Path(sys.argv.pop(2)).resolve()
    sys.argv.pop(1)
    unittest.main(verbosity=2)
