#!/usr/bin/env python3
"""Training programs on two hosts of namespaces: the bits of one host, through kills and lost hosts.

faces_test.py --build BUILD [--python PYTHON] [--mindspore PYTHON]   those have PyTorch and MindSpore; without one its tests are left out
"""
import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from common import ROOT, fleet_of
from hosts_test import setUpModule  # noqa: F401

arguments = argparse.Namespace()
LIMIT_S = 120  # Only a hang takes so long.
PROGRAMS = ROOT / "python" / "tests"


class Faces(unittest.TestCase):
    def setUp(self):
        # Hosts share all folders except /tmp and /dev/shm.
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir="/var/tmp")))
        token = self.folder / "token"
        token.touch(mode=0o600)
        token.write_text("0123456789abcdef\n")
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "HOLDFAST_", "MS_"))}
        self.env = {**bare, "PYTHONPATH": str(arguments.build / "python"), "HOLDFAST_TOKEN_FILE": str(token), "OMP_NUM_THREADS": "1",
                    "TORCH_CPP_LOG_LEVEL": "ERROR", "GLOG_v": "3"}

    def start(self, name, fleet, host, command, at=None):
        """Start a host's part of a job, in the job's folder. Without a fleet it is on this machine."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        with open(folder / f"said-{host}", "a") as output:
            options = {"env": self.env, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output, "cwd": folder}
            if fleet:
                return fleet.popen(host if at is None else at, command, **options)
            process = subprocess.Popen(command, **options)
            self.addCleanup(process.wait, LIMIT_S)
            self.addCleanup(process.terminate)
            return process

    def torch(self, name, fleet, each, config, spares=0, spare_hosts=0):
        """Start torch_program.py, on two hosts and spare hosts, or without hosts; return its agents, and a function that starts one again."""
        if not arguments.python:
            self.skipTest("no --python with PyTorch")

        def start(host, at=None):
            command = [arguments.python, "-m", "holdfast", "run", f"--nproc-per-node={each}", "--log-dir=log", f"--spares={spares}"]
            if fleet:
                command += [f"--nnodes=2:{2 + spare_hosts}", f"--node-rank={host}", f"--rdzv-endpoint={fleet.address(0)}"]
            return self.start(name, fleet, host, [*command, PROGRAMS / "torch_program.py", json.dumps(config), self.folder / name], at)

        return [start(host) for host in range(2 + spare_hosts if fleet else 1)], start

    def msrun(self, name, fleet, *program):
        """Do as torch(), with msrun and one rank on each host."""

        def start(host, at=None):
            options = ["--worker_num=2", "--local_worker_num=1", f"--node_rank={host}", f"--master_addr={fleet.address(0)}",
                       "--master_port=8118", "--join=True", f"--log_dir=log{host}"]
            return self.start(name, fleet, host, [arguments.build / "bin" / "msrun", *options, *program], at)

        return [start(host) for host in range(2)], start

    def said(self, name):
        logs = [*(self.folder / name).glob("said-*"), *(self.folder / name).glob("log*/*.log")]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(logs))

    def until(self, what, name, agents):
        end = time.monotonic() + LIMIT_S
        while not what():
            self.assertLess(time.monotonic(), end, self.said(name))
            self.assertEqual([agent.poll() for agent in agents], [None] * len(agents), self.said(name))
            time.sleep(0.02)

    def step(self, name, rank):
        with contextlib.suppress(OSError):
            return int((self.folder / name / f"pid-{rank}").read_text().split()[1])
        return 0

    def results(self, name, agents, ranks):
        for agent in agents:
            self.assertEqual(agent.wait(LIMIT_S), 0, self.said(name))
        return [json.loads((self.folder / name / f"result-{rank}").read_text()) for rank in range(ranks)]

    def lose(self, fleet, agents, start):
        """Lose host 1, and start its part of the job on host 2."""
        fleet.kill(1)
        agents.pop(1).wait(LIMIT_S)
        agents.append(start(1, at=2))

    def why_lost(self, name, fleet, agents, start):
        """Do as lose(). All agents must end for the same reason; return it."""
        self.lose(fleet, agents, start)
        for agent in agents:
            self.assertEqual(agent.wait(LIMIT_S), 1, self.said(name))
        told = [set(), set()]
        for host in (0, 1):
            for line in (self.folder / name / f"said-{host}").read_text().splitlines():
                if "the job has failed: " in line:
                    told[host].add(line.split("the job has failed: ")[1])
        self.assertEqual(told[0], told[1], self.said(name))
        self.assertEqual(len(told[0]), 1, self.said(name))
        return told[0].pop()

    def test_torch_killed_processes_cost_no_bit(self):
        config = {"kind": "ddp", "epochs": 2}
        alone, _ = self.torch("one", None, 4, config)
        expected = self.results("one", alone, 4)
        with fleet_of(2, arguments.build) as fleet:
            agents, _ = self.torch("two", fleet, 2, {**config, "kills": [[3, 3, "collective"], [0, 6, "update"]]}, spares=1)
            self.assertEqual(self.results("two", agents, 4), expected)
        self.assertEqual(len(list((self.folder / "two").glob("killed-*"))), 2)

    def test_torch_a_lost_host_costs_no_bit(self):
        for kind in ("ddp", "fsdp", "hsdp"):
            with self.subTest(kind):
                config = {"kind": kind, "epochs": 2}
                alone, _ = self.torch(f"one-{kind}", None, 4, config)
                expected = self.results(f"one-{kind}", alone, 4)
                name = f"lost-{kind}"
                with fleet_of(3, arguments.build) as fleet:
                    agents, start = self.torch(name, fleet, 2, {**config, "hold": 5})
                    self.until(lambda name=name: min(self.step(name, rank) for rank in range(4)) == 5, name, agents)
                    fleet.run(0, ["touch", self.folder / name / "go"], check=True, cwd="/")
                    self.lose(fleet, agents, start)
                    self.assertEqual(self.results(name, agents, 4), expected)

    def test_torch_a_spare_host_is_ready_before_it_is_needed(self):
        config = {"kind": "ddp", "epochs": 2}
        alone, _ = self.torch("one", None, 4, config)
        expected = self.results("one", alone, 4)
        traces = self.folder / "traces"
        self.env["HOLDFAST_TRACE"] = str(traces)
        with fleet_of(3, arguments.build) as fleet:
            agents, _ = self.torch("lost", fleet, 2, {**config, "hold": 5}, spare_hosts=1)
            self.until(lambda: min(self.step("lost", rank) for rank in range(4)) == 5, "lost", agents)
            self.until(lambda: sum(path.read_text().count('"event":"waiting"') for path in traces.glob("*.jsonl")) >= 2, "lost", agents)
            fleet.run(0, ["touch", self.folder / "lost" / "go"], check=True, cwd="/")
            fleet.kill(1)
            agents.pop(1).wait(LIMIT_S)
            self.assertEqual(self.results("lost", agents, 4), expected)

    def test_torch_without_replicas_a_lost_host_ends_the_job(self):
        self.env["HOLDFAST_REPLICAS"] = "0"
        with fleet_of(3, arguments.build) as fleet:
            agents, start = self.torch("lost", fleet, 1, {"kind": "ddp", "hold": 5})
            self.until(lambda: min(self.step("lost", rank) for rank in (0, 1)) == 5, "lost", agents)
            fleet.run(0, ["touch", self.folder / "lost" / "go"], check=True, cwd="/")
            # The step under way is void, whether the survivor has left it by now or not.
            self.assertRegex(self.why_lost("lost", fleet, agents, start), r"^the state can not be recovered: it was at step \d+, and no copy of the private "
                             "part of rank 1 is left")
        self.assertEqual(list((self.folder / "lost").glob("result-*")), [])

    def test_cpp_a_lost_host_costs_no_bit(self):
        for number, more in enumerate(([], ["--batch-norm"])):
            with self.subTest(more):
                program = [arguments.build / "bin" / "mnist", "--data", arguments.build / "digits", "--epochs", "20", "--dropout", "0.2", *more]
                traces = self.folder / f"traces{number}"
                self.env["HOLDFAST_TRACE"] = str(traces)
                with fleet_of(3, arguments.build) as fleet:
                    agents, start = self.msrun(f"lost{number}", fleet, *program)
                    self.until(lambda traces=traces: any('"step":60,' in path.read_text() for path in traces.glob("*.jsonl")), f"lost{number}", agents)
                    self.lose(fleet, agents, start)
                    ends = self.digests(f"lost{number}", agents)
                del self.env["HOLDFAST_TRACE"]
                with fleet_of(2, arguments.build) as fleet:
                    self.assertEqual(self.digests(f"calm{number}", self.msrun(f"calm{number}", fleet, *program)[0]), ends)

    def digests(self, name, agents):
        """Wait for the end; return each rank's line on its state."""
        for agent in agents:
            self.assertEqual(agent.wait(LIMIT_S), 0, self.said(name))
        logs = [(self.folder / name / f"log{rank}" / f"worker_{rank}.log").read_text() for rank in (0, 1)]
        for log in logs:
            assert "done after step" in log, self.said(name)
        return [log[log.index("done after step"):].split("\n")[0] for log in logs]

    def test_mindspore_a_lost_host_costs_no_bit(self):
        if not arguments.mindspore:
            self.skipTest("no --mindspore with MindSpore")
        make = f"import sys, pathlib; sys.path.insert(0, '{PROGRAMS}'); import mindspore_job; mindspore_job.make_data(pathlib.Path(sys.argv[1]))"
        subprocess.run([arguments.mindspore, "-c", make, self.folder / "data"], env=self.env, check=True, timeout=LIMIT_S)
        self.env["DATA_PATH"] = str(self.folder / "data")
        program = [arguments.mindspore, "-m", "holdfast.mindspore", PROGRAMS / "mindspore_program.py", json.dumps({"epochs": 8, "pause": 0.01})]
        with fleet_of(3, arguments.build) as fleet:
            agents, start = self.msrun("lost", fleet, *program)
            self.until(lambda: self.step("lost", 0) >= 5, "lost", agents)
            self.lose(fleet, agents, start)
            ends = self.checkpoints("lost", agents)
        with fleet_of(2, arguments.build) as fleet:
            self.assertEqual(self.checkpoints("calm", self.msrun("calm", fleet, *program)[0]), ends)

    def checkpoints(self, name, agents):
        """Wait for the end; return each rank's checkpoint of MindSpore."""
        for agent in agents:
            self.assertEqual(agent.wait(LIMIT_S), 0, self.said(name))
        return [(self.folder / name / f"final-{rank}.ckpt").read_bytes() for rank in (0, 1)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--python")
    parser.add_argument("--mindspore")
    arguments, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])
