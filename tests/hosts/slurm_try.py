#!/usr/bin/env python3
"""Tries examples/slurm/train.sbatch under Slurm: a controller and three nodes of namespaces, one of which is lost in silence.

slurm_try.py --build BUILD [TEST...]   by hand, as root: what hosts need (docs/testing-hosts.md), and Debian's packages
slurmctld, slurmd, slurm-client, slurm-wlm-basic-plugins and munge. HOLDFAST_PYTHON: a Python with torch.
"""
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from common import RESULT, ROOT, fleet_of, write_training
from hosts_test import setUpModule  # noqa: F401
from job import Trace

LIMIT_S = 300  # Only a hang takes so long. Slurm starts a job again after two minutes.
NODES = (1, 2, 3)  # Host 0 is the controller, where sbatch is called.
EACH = 2  # Processes on each node.
LOST_S = 20  # The silence after which Slurm counts a node as lost.
PYTHON = os.environ.get("HOLDFAST_PYTHON", sys.executable)
RUNNING = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING")
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "openssl")
CONFIGURATION = """
ClusterName=try
SlurmctldHost=host0
AuthInfo=socket=/tmp/munge.socket
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile=/tmp/slurmctld.pid
SlurmdPidFile=/tmp/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SlurmdTimeout={lost_s}
KillWait=10
ReturnToService=2
NodeName=host[1-3] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm(unittest.TestCase):
    expected = ""

    def setUp(self):
        # Hosts share all folders except /tmp and /dev/shm.
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir="/var/tmp", prefix="holdfast-slurm-")))
        (self.folder / "state").mkdir()
        (self.folder / "home").mkdir(mode=0o700)
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(folder=self.folder, lost_s=LOST_S))
        key = self.folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        shutil.copy(ROOT / "examples/slurm/train.sbatch", self.folder)
        write_training(self.folder / "train.py")
        self.install_holdfast()
        self.fleet = self.enterContext(fleet_of(1 + len(NODES), BUILD))
        self.daemons = []
        for host in (0, *NODES):
            self.start_node(host)
        self.until(lambda: self.call("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * len(NODES), "three idle nodes")

    def install_holdfast(self):
        """Puts the command `holdfast` on the PATH, as pip does."""
        script = self.folder / "bin" / "holdfast"
        script.parent.mkdir()
        script.write_text(f'#!/bin/sh\nexec {PYTHON} -m holdfast "$@"\n')
        script.chmod(0o755)
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "HOLDFAST_", "MS_", "SLURM_"))}
        self.env = {**bare, "SLURM_CONF": str(self.folder / "slurm.conf"), "HOME": str(self.folder / "home"), "OMP_NUM_THREADS": "1",
                    "PATH": f"{script.parent}:{os.environ['PATH']}", "PYTHONPATH": str(BUILD / "python")}

    def start_node(self, host):
        """Starts the daemons of a host, with a munged of the host's own."""
        munged = ["munged", "--foreground", "--force", f"--key-file={self.folder}/munge.key",
                  *(f"--{what}-file=/tmp/munge.{what}" for what in ("log", "pid", "seed")), "--socket=/tmp/munge.socket"]
        self.daemon(host, *munged)
        self.until(lambda: self.fleet.run(host, ["munge", "-n", "-S", "/tmp/munge.socket"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                          cwd="/", timeout=LIMIT_S).returncode == 0, f"munged of host{host}")
        self.daemon(host, *(["slurmd", "-D", "-N", f"host{host}"] if host else ["slurmctld", "-D", "-i"]))

    def daemon(self, host, *command):
        with open(self.folder / f"{command[0]}-{host}.out", "ab") as said:
            self.daemons.append(self.fleet.popen(host, command, env=self.env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=self.folder))

    def call(self, *command):
        """The output of a command on the controller."""
        return self.fleet.run(0, command, env=self.env, cwd=self.folder, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S).stdout

    def until(self, what, name):
        end = time.monotonic() + LIMIT_S
        while not (found := what()):
            self.assertLess(time.monotonic(), end, f"{name} did not come\n{self.said()}")
            time.sleep(0.2)
        return found

    def said(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-4000:]}" for path in sorted(self.folder.glob("slurm*[to]*")))

    # ---- Jobs ----

    def submit(self, *options, **settings):
        trace = Path(tempfile.mkdtemp(dir=self.folder, prefix="trace-"))
        self.trace = Trace(trace)
        settings = {"HOLDFAST_TRACE": trace, **settings}
        return self.call("sbatch", "--parsable", f"--export={','.join(['ALL', *(f'{name}={value}' for name, value in settings.items())])}", f"--cpus-per-task={EACH}", *options, "train.sbatch", "train.py").strip()

    def in_training(self, job, step=40):
        """Waits until some rank has made this step; the job must be running."""
        def there():
            self.trace.poll()
            return self.trace.newest_step() >= step
        self.until(lambda: there() or self.shown(job)["JobState"] not in RUNNING, f"step {step}")
        self.assertEqual(self.shown(job)["JobState"], "RUNNING", f"{self.output(job)}: {self.trace.newest_step()}, {len(self.trace.events('waiting'))} wait")

    def shown(self, job):
        return dict(re.findall(r"(\w+)=(\S+)", self.call("scontrol", "show", "job", job)))

    def ended(self, job):
        """Waits for the end of a job; returns what Slurm says of it."""
        self.until(lambda: self.shown(job)["JobState"] not in RUNNING, f"the end of job {job}")
        return self.shown(job)

    def output(self, job):
        return (self.folder / f"slurm-{job}.out").read_text(errors="replace")

    def result(self, job):
        found = re.findall(RESULT, self.output(job))
        self.assertEqual(len(found), 1, self.output(job))
        return found[0]

    def processes(self, host):
        """The command lines of a job's processes on a host."""
        with contextlib.suppress(subprocess.CalledProcessError):
            listed = self.fleet.run(host, ["ps", "-eo", "args"], stdout=subprocess.PIPE, text=True, cwd="/", timeout=LIMIT_S, check=True).stdout
            return [line for line in listed.splitlines() if "train.py" in line]
        return []

    def undisturbed(self):
        """The result of a job without faults."""
        if not Slurm.expected:
            job = self.submit()
            self.assert_completed(job)
            Slurm.expected = self.result(job)
        return Slurm.expected

    def assert_completed(self, job):
        ended = self.ended(job)
        self.assertEqual((ended["JobState"], ended["ExitCode"]), ("COMPLETED", "0:0"), self.output(job))

    def assert_nothing_is_left(self, *nodes):
        """Checks that no process and no token of a job is left."""
        self.until(lambda: not any(self.processes(host) for host in nodes), "the end of all processes")
        self.assertEqual(list((self.folder / "home").iterdir()), [])

    def test_a_node_is_lost(self):
        expected = self.undisturbed()
        job = self.submit()
        self.in_training(job)
        self.assertIn("job port-", self.call("srun", f"--jobid={job}", "--overlap", "-N1", "-n1", "holdfast", "status"))
        self.fleet.kill(2)
        self.assert_completed(job)
        self.assertEqual(self.result(job), expected)
        self.assertIn("Node failure on host2", self.output(job))
        self.assert_nothing_is_left(1, 3)

    def test_a_node_is_not_heard_for_a_moment(self):
        """Its ranks move to the spare node. Slurm does not notice, and the node waits for the next loss."""
        expected = self.undisturbed()
        job = self.submit()
        self.in_training(job)
        self.fleet.cut(2)
        self.until(lambda: self.trace.poll() and any(event["generation"] == 2 for event in self.trace.events("resume")), "the spare node's part")
        self.fleet.heal()
        self.assert_completed(job)
        self.assertEqual(self.result(job), expected)
        self.assertNotIn("Node failure", self.output(job))
        self.assert_nothing_is_left(1, 2, 3)

    def test_a_node_is_not_heard_for_a_while(self):
        expected = self.undisturbed()
        job = self.submit()
        self.in_training(job)
        self.fleet.cut(2)
        self.until(lambda: "Node failure on host2" in self.output(job), "Slurm's word on it")
        self.fleet.heal()
        self.assert_completed(job)
        self.assertEqual(self.result(job), expected)
        self.assert_nothing_is_left(1, 2, 3)

    def test_the_job_is_cancelled(self):
        job = self.submit()
        self.in_training(job)
        self.call("scancel", job)
        self.assertEqual(self.ended(job)["JobState"], "CANCELLED")
        self.assert_nothing_is_left(1, 2, 3)

    def test_the_first_node_is_lost(self):
        """Another node then ends the job."""
        job = self.submit()
        self.in_training(job)
        self.fleet.kill(1)
        self.assertEqual(self.ended(job)["JobState"], "CANCELLED")
        self.until(lambda: not self.processes(2) and not self.processes(3), "the end of all processes")

    def test_the_time_is_over(self):
        job = self.submit("--time=1", EPOCHS=10_000)
        self.assertEqual(self.ended(job)["JobState"], "TIMEOUT")
        self.assert_nothing_is_left(1, 2, 3)

    def test_the_program_fails(self):
        (self.folder / "train.py").write_text("raise SystemExit(3)\n")
        job = self.submit()
        ended = self.ended(job)
        self.assertEqual(ended["JobState"], "FAILED", self.output(job))
        self.assertNotEqual(ended["ExitCode"], "0:0")
        self.assert_nothing_is_left(1, 2, 3)

    def test_the_first_node_is_lost_and_slurm_begins_again(self):
        expected = self.undisturbed()
        job = self.submit("--requeue", HOLDFAST_SNAPSHOT_EVERY="1s")
        self.in_training(job)
        self.until(lambda: list(self.folder.glob(f"snapshots-{job}/*/manifest.json")), "a snapshot")
        self.fleet.kill(1)
        self.until(lambda: self.shown(job)["Restarts"] == "1", "the job in the queue again")
        self.fleet.up_again(1)
        self.start_node(1)
        self.assert_completed(job)
        self.assertIn("begins again from the snapshot of step", self.output(job))
        self.assertEqual(self.result(job), expected)
        self.assert_nothing_is_left(1, 2, 3)

    def test_a_job_whose_time_is_over_goes_on_in_another_one(self):
        """The script gets a signal some time before, and has the job make a last snapshot and end."""
        expected = self.undisturbed()
        job = self.submit()
        self.in_training(job)
        self.call("scancel", "--signal=USR1", "--batch", job)
        ended = self.ended(job)
        self.assertEqual((ended["JobState"], ended["ExitCode"]), ("FAILED", "143:0"), self.output(job))
        self.assertRegex(self.output(job), r"the snapshot of step \d+ \(\S+\) is on the disk")
        self.assert_nothing_is_left(1, 2, 3)
        second = self.submit(SNAPSHOTS=f"snapshots-{job}")
        self.assert_completed(second)
        self.assertIn("begins again from the snapshot of step", self.output(second))
        self.assertEqual(self.result(second), expected)


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(sys.argv.index("--build") + 1)).resolve()
    sys.argv.remove("--build")
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        sys.exit(f"{', '.join(missing)}: not installed; the first lines of {__file__} say what is needed")
    unittest.main()
