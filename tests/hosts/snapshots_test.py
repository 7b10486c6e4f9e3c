#!/usr/bin/env python3
"""A job over several hosts goes on from its snapshots, and leaves its last step when it ends.

snapshots_test.py --build BUILD [TEST...]   what the hosts need: docs/testing-hosts.md
"""
import os
import signal
import sys
import time
import unittest
from pathlib import Path

import job_test
from common import newest
from hosts_test import setUpModule  # noqa: F401
from job_test import LIMIT_S, Job


class Snapshots(job_test.OnHosts):
    def test_everything_lost_on_all_hosts_goes_on_with_other_hosts(self):
        """Two hosts lose all at once. The same ranks go on with three hosts, and then with one, each time from a snapshot."""
        expected = self.one_host(4, keys=50, more=("--server_num", "1"))
        snapshots = self.folder / "snapshots"
        options = ("--server_num", "1", "--snapshot", str(snapshots), "--snapshot_every", "20", "--resume", "auto")
        fleet = self.fleet(3)
        for hosts, each, step in ((2, 2, 60), (3, [2, 1, 1], 140)):
            job = Job(self.folder / f"lost-{hosts}", fleet, hosts, each, keys=50, more=options)
            job.until(lambda step=step: newest(snapshots) >= step, f"the snapshot of step {step}")
            for host in range(hosts):
                fleet.kill(host)
            for host, agent in job.agents.items():
                agent.wait()
                fleet.up_again(host)
        at = newest(snapshots)
        last = Job(self.folder / "last", None, 1, 4, keys=50, more=options)
        self.assertEqual(last.wait(), expected)
        self.assertIn(f"begins again from the snapshot of step {at} ", last.logs())

    def test_a_job_that_fails_or_is_told_to_end_leaves_its_last_step(self):
        """On all its hosts, of which one makes a snapshot from memory. No other one was due."""
        expected = self.one_host(4)
        snapshots = self.folder / "left"
        options = ("--snapshot", str(snapshots), "--snapshot_every", "1000000", "--resume", "auto", "--max_restarts", "0")
        fleet = self.fleet(2)
        for number, end in enumerate((lambda job: os.kill(job.pids(1)[0], signal.SIGKILL), lambda job: job.agents[1].terminate())):
            job = Job(self.folder / f"left-{number}", fleet, 2, 2, more=options)
            job.until_step(60 + 80 * number)
            end(job)
            ends = time.monotonic() + LIMIT_S
            self.assertNotIn(0, [job.ended(agent, ends) for agent in job.agents.values()])
            made = [int(path.parent.name.rpartition("-")[2]) for path in snapshots.glob("*/manifest.json")]
            self.assertEqual(len(made), number + 1, job.logs())
            self.assertGreaterEqual(max(made), job.newest_step() - 1)
            self.assertEqual([path.name for path in snapshots.glob("last-*")], [])
        last = Job(self.folder / "left-last", None, 1, 4, more=options)
        self.assertEqual(last.wait(), expected)
        self.assertIn(f"begins again from the snapshot of step {max(made)} ", last.logs())

    def test_without_replicas_a_lost_host_takes_the_job_back_to_a_snapshot(self):
        expected = self.one_host(4)
        fleet = self.fleet(2)
        options = ("--snapshot", str(self.folder / "rung"), "--snapshot_every", "20")
        job = Job(self.folder / "own-rung", fleet, 2, 2, env={"HOLDFAST_REPLICAS": "0"}, more=options)
        job.until_step(60)
        fleet.kill(1)
        job.agents.pop(1).wait()
        fleet.up_again(1)
        job.start(1, *options)
        self.assertEqual(job.wait(), expected)
        self.assertRegex(job.logs(), r"begins again from the snapshot of step \d+ \(\S+\): \d+ steps are made again")


if __name__ == "__main__":
    job_test.BUILD = Path(sys.argv.pop(2)).resolve()
    sys.argv.pop(1)
    unittest.main(verbosity=2)
