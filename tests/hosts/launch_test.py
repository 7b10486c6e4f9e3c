#!/usr/bin/env python3
"""`holdfast run --nnodes 2` on two hosts of namespaces: ranks, variables, exit codes, status.

launch_test.py --build BUILD   what the hosts need: docs/testing-hosts.md
"""
import json
import os
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path

from common import fleet_of
from hosts_test import setUpModule  # noqa: F401

LIMIT_S = 120  # Only a hang takes so long.
NAMES = "RANK LOCAL_RANK ROLE_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK GROUP_WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID"
PROGRAM = f"""
import json, os, socket, sys, time
from pathlib import Path
found = {{name: os.environ[name] for name in "{NAMES}".split()}}
folder = Path(sys.argv[1])
(folder / "new-{{RANK}}".format(**found)).write_text(json.dumps([socket.gethostname(), found]))
(folder / "new-{{RANK}}".format(**found)).rename(folder / "rank-{{RANK}}.json".format(**found))
until = time.monotonic() + {LIMIT_S}
while not (folder / "go").exists():
    assert time.monotonic() < until
    time.sleep(0.01)
"""

JOINS = f"""
import socket, sys, time
from pathlib import Path
import holdfast
folder = Path(sys.argv[1])
job = holdfast.init()
(folder / f"started-{{socket.gethostname()}}").touch()
job.rank  # A spare waits here, to the job's end.
until = time.monotonic() + {LIMIT_S}
while not (folder / "go").exists():
    assert time.monotonic() < until
    time.sleep(0.01)
"""


class Launch(unittest.TestCase):
    def setUp(self):
        # Hosts share all folders except /tmp and /dev/shm.
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir="/var/tmp")))
        self.fleet = self.enterContext(fleet_of(2, BUILD))
        self.program = self.folder / "program.py"
        self.program.write_text(PROGRAM)
        token = self.folder / "token"
        token.write_text("0123456789abcdef\n")
        token.chmod(0o600)
        self.bare = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "HOLDFAST_", "MS_"))}
        self.bare["PYTHONPATH"] = str(BUILD / "python")
        self.told = {**self.bare, "HOLDFAST_TOKEN_FILE": str(token)}

    def start(self, host, *options, env, port=29400):
        log = self.folder / f"said-{host}"
        command = [sys.executable, "-m", "holdfast", "run", "--nnodes=2", "--nproc-per-node=2", f"--log-dir={self.folder}/log",
                   f"--rdzv-endpoint={self.fleet.address(0)}:{port}", *options, self.program, self.folder]
        with open(log, "w") as output:
            return self.fleet.popen(host, command, env=env, stdout=output, stderr=output, cwd=self.folder)

    def said(self, host):
        log = self.folder / f"said-{host}"
        return log.read_text() if log.exists() else ""

    def until(self, what):
        end = time.monotonic() + LIMIT_S
        while not (found := what()):
            self.assertLess(time.monotonic(), end, self.said(0) + self.said(1))
            time.sleep(0.05)
        return found

    def status(self, host):
        """The status of the job on a host, without settings: only the agent there knows the job."""
        done = self.fleet.run(host, [BUILD / "bin" / "holdfast", "status"], env=self.bare, capture_output=True, text=True, cwd="/", timeout=LIMIT_S)
        return done.stdout if done.returncode == 0 else ""

    def test_each_rank_finds_its_place(self):
        launched = [self.start(host, "--rdzv-id=x7", env=self.told) for host in (0, 1)]
        self.until(lambda: len(list(self.folder.glob("rank-*.json"))) == 4)
        for host in (0, 1):
            self.assertIn("job port-29400: waiting for workers", self.until(lambda host=host: self.status(host)))
        (self.folder / "go").touch()
        for host, process in enumerate(launched):
            self.assertEqual(process.wait(LIMIT_S), 0, self.said(host))
            self.assertIn(f"this host is node {host} of 2", self.said(host))
            self.assertIn("the job has ended in good order", self.said(host))
        for rank in range(4):
            host, found = json.loads((self.folder / f"rank-{rank}.json").read_text())
            node, local = divmod(rank, 2)
            self.assertEqual(host, f"host{node}")
            self.assertEqual(list(found.values()), [*map(str, (rank, local, rank, 4, 2, node, 2)), self.fleet.address(0), "29401", "x7"])
            self.assertTrue((self.folder / "log" / f"worker_{rank}.log").exists())
        for host in (0, 1):  # No memory and no process of the job is left.
            self.assertEqual(self.status(host), "")
            left = self.fleet.run(host, ["sh", "-c", "ls /dev/shm"], capture_output=True, text=True, cwd="/", timeout=LIMIT_S)
            self.assertEqual(left.stdout, "")

    def test_nothing_is_started_without_a_token(self):
        for host in (0, 1):
            self.assertEqual(self.start(host, env=self.bare).wait(LIMIT_S), 2)
            self.assertIn("HOLDFAST_TOKEN_FILE is not set: by it the hosts of a job know one another", self.said(host))
        self.assertEqual(list(self.folder.glob("rank-*")), [])

    def test_a_host_that_has_not_the_address_is_not_the_first(self):
        self.assertEqual(self.start(1, "--node-rank=0", env=self.told).wait(LIMIT_S), 2)
        self.assertIn("the address in --rdzv-endpoint has to be an address of this host: ", self.said(1))

    def test_on_a_spare_host_the_program_is_started_once_others_have_joined(self):
        self.program.write_text(JOINS)
        spare = self.start(1, "--nnodes=1:2", "--node-rank=1", env=self.told)
        first = self.start(0, "--nnodes=1:2", "--node-rank=0", env=self.told)
        self.until(lambda: (self.folder / "started-host1").exists() or first.poll() is not None or spare.poll() is not None)
        self.assertTrue((self.folder / "started-host1").exists(), self.said(0) + self.said(1))
        (self.folder / "go").touch()
        for host, process in enumerate((first, spare)):
            self.assertEqual(process.wait(LIMIT_S), 0, self.said(host))

    def test_a_host_that_fails_before_it_reaches_the_scheduler_says_so(self):
        self.program.write_text("import sys; sys.exit(0 if __import__('os').environ['RANK'] != '3' else 'no good')")
        second = self.start(1, env=self.told)
        self.until(lambda: "waits for the scheduler, to tell the other hosts" in self.said(1) or second.poll() is not None)
        self.assertIsNone(second.poll(), self.said(1))
        self.assertIn("over several hosts all are not started again", self.said(1))
        second.terminate()
        self.assertEqual(second.wait(LIMIT_S), 128 + signal.SIGTERM, self.said(1))


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(sys.argv.index("--build") + 1)).resolve()
    sys.argv.remove("--build")
    unittest.main()
