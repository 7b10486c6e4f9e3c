#!/usr/bin/env python3
"""A job over several hosts of namespaces has the bits that it has on one, and keeps them after faults.

job_test.py --build BUILD [TEST...]   what the hosts need: docs/testing-hosts.md
"""
import argparse
import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from common import fleet_of
from fleet import linux
from hosts_test import setUpModule  # noqa: F401
from job import Trace, alive, free_port

LIMIT_S = 120  # Only a hang takes so long.


def words(*pairs):
    """--name value, for each pair that has a value."""
    return [word for name, value in pairs for word in (f"--{name}", str(value))]


class Job:
    """A job of bin/toy on `hosts` hosts with `each` ranks each; without a fleet, all on this machine."""

    def __init__(self, folder, fleet, hosts, each, *, steps=300, elements=20_000, pause=1000, optimizer="adam", private="own", hold=0, spares=0, keys=0, more=(), env=()):
        assert fleet or hosts == 1
        self.out = Path(folder)
        self.out.mkdir()
        self.fleet, self.each = fleet, each if isinstance(each, list) else [each] * hosts
        self.ranks = sum(self.each)
        token = self.out / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.env = {**os.environ, "HOLDFAST_JOB": f"many-{secrets.token_hex(4)}", "HOLDFAST_TOKEN_FILE": str(token),
                    "HOLDFAST_TRACE": str(self.out / "trace"), **dict(env)}
        (self.out / "trace").mkdir()
        self.trace = Trace(self.out / "trace")
        self.program = [str(BUILD / "bin/toy"), *words(("steps", steps), ("out", self.out), ("optimizer", optimizer),
                                                 ("elements", elements), ("pause", pause), ("private", private), ("hold", hold), ("keys", keys))]
        self.spares, self.port = spares, free_port()
        self.agents = {}
        for host in range(hosts):
            self.start(host, *more)

    def start(self, host, *more, at=None):
        options = words(("worker_num", self.ranks), ("local_worker_num", ",".join(map(str, self.each))), ("node_rank", host),
                        ("master_port", self.port), ("join", True), ("log_dir", self.out / f"logs{host}"), ("spares", self.spares))
        if self.fleet:
            options += words(("master_addr", self.fleet.address(0)))
        command = [str(BUILD / "bin/msrun"), *options, *more, *self.program]
        with open(self.out / f"msrun{host}.log", "ab") as log:
            how = {"env": self.env, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            self.agents[host] = self.fleet.popen(host if at is None else at, command, **how) if self.fleet else subprocess.Popen(command, **how)

    def wait(self):
        """Waits until all agents have ended well; returns the state of each rank."""
        end = time.monotonic() + LIMIT_S
        codes = {host: self.ended(agent, end) for host, agent in self.agents.items()}
        assert set(codes.values()) == {0}, f"{codes}\n{self.logs()}"
        return [(self.out / f"rank-{rank}").read_bytes() for rank in range(self.ranks)]

    def ended(self, agent, end):
        try:
            return agent.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            return f"not ended after {LIMIT_S} s"

    def inject(self, *words):
        """`holdfast inject` on the first host: its exit code and what it says."""
        asked = self.fleet.popen(0, [str(BUILD / "bin/holdfast"), "inject", *words], env=self.env, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, text=True)
        said = asked.communicate(timeout=LIMIT_S)[0]
        return asked.returncode, said

    def server(self, host):
        """The pid of this host's parameter server, where each host has one."""
        place = f"MS_NODE_ID={self.ranks + host}".encode()
        job = f"HOLDFAST_JOB={self.env['HOLDFAST_JOB']}".encode()
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes().split(b"\0")
                if process.name.isdecimal() and {place, job, b"MS_ROLE=MS_PSERVER"} <= set(environment):
                    return int(process.name)
        raise AssertionError(f"host {host} has no server")

    def logs(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.out.rglob("*.log")))

    def events(self, kind):
        """The traced events of a kind, so far."""
        self.trace.poll()
        return self.trace.events(kind)

    def newest_step(self):
        self.trace.poll()
        return self.trace.newest_step()

    def until_step(self, step):
        """Waits until some rank has made this step."""
        self.until(lambda: self.newest_step() >= step, f"step {step}")

    def until_ready(self, condition, what):
        """Waits for a condition in a job that holds at a step, then lets the job go on."""
        self.until(condition, what)
        (self.out / "go").touch()

    def goes_on_to(self, step):
        """Waits until some rank has made this step, or the job has ended before."""
        end = time.monotonic() + LIMIT_S
        while self.newest_step() < step and self.agents[0].poll() is None:
            assert time.monotonic() < end, f"step {step} did not come\n{self.logs()}"
            time.sleep(0.02)

    def until(self, condition, what):
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"{what} did not come\n{self.logs()}"
            dead = {host: agent.returncode for host, agent in self.agents.items() if agent.poll() not in (None, 0)}
            assert not dead, f"{what} did not come: {dead}\n{self.logs()}"
            time.sleep(0.02)

    def pids(self, host, role="MS_WORKER"):
        """The pids, as this machine counts, of processes with this role and a place of this host."""
        found = []
        for process in Path("/proc").iterdir():
            if not process.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes().split(b"\0")
                command = (process / "cmdline").read_bytes()
                words = dict(entry.partition(b"=")[::2] for entry in environment)
                ours = words.get(b"HOLDFAST_JOB") == self.env["HOLDFAST_JOB"].encode() and words.get(b"MS_ROLE") == role.encode()
                node = words.get(b"MS_NODE_ID", b"")
                first = sum(self.each[:host])
                here = role == "MS_SCHED" or (node.isdigit() and int(node) in range(first, first + self.each[host]))
                ours = ours and b"HOLDFAST_REHEARSE" not in words
                if ours and here and command.startswith(self.program[0].encode()):
                    found.append(int(process.name))
        return found


def begin_long_run(doc, counted, default):
    """Reads the options of a long run with random faults; returns how many, and the random generator."""
    global BUILD
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument(counted, dest="count", type=int, default=default)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    arguments = parser.parse_args()
    if os.environ.get("HOLDFAST_TEST_WITHOUT_HOSTS") == "1" and (why := linux.lacking()):
        print(f"not run: {why}")
        sys.exit(0)
    BUILD = arguments.build.resolve()
    print(f"seed {arguments.seed}", flush=True)
    return arguments.count, random.Random(arguments.seed)


class OnHosts(unittest.TestCase):
    def setUp(self):
        # Hosts share all folders except /tmp and /dev/shm.
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir="/var/tmp")))

    def fleet(self, count):
        return self.enterContext(fleet_of(count, BUILD))

    def one_host(self, ranks, **how):
        return Job(self.folder / f"one-{secrets.token_hex(2)}", None, 1, ranks, **how).wait()


class OneJob(OnHosts):
    def test_same_bits_as_on_one_host(self):
        expected = self.one_host(4, pause=0)
        self.assertEqual(Job(self.folder / "two", self.fleet(2), 2, 2, pause=0).wait(), expected)

    def test_any_layout_has_the_same_bits(self):
        expected = self.one_host(6, pause=0, steps=100)
        self.assertEqual(Job(self.folder / "three", self.fleet(3), 3, 2, pause=0, steps=100).wait(), expected)

    def test_killed_processes_cost_no_bit(self):
        expected = self.one_host(4)
        job = Job(self.folder / "killed", self.fleet(2), 2, 2, spares=1)
        for host, step in ((1, 40), (0, 120), (1, 200)):
            job.until_step(step)
            os.kill(random.choice(job.pids(host)), signal.SIGKILL)
        self.assertEqual(job.wait(), expected)
        self.assertGreaterEqual(len(job.events("recovered")), 4)

    def test_servers_on_two_hosts_may_be_killed(self):
        expected = self.one_host(2, keys=50, more=("--server_num", "1"))
        job = Job(self.folder / "servers", self.fleet(2), 2, 1, keys=50, more=("--server_num", "2"))
        for host, step in ((1, 40), (0, 100)):
            job.until_step(step)
            os.kill(job.server(host), signal.SIGKILL)
        job.until_step(160)
        os.kill(*job.pids(1), signal.SIGKILL)
        job.until_step(220)
        os.kill(*job.pids(0, "MS_SCHED"), signal.SIGKILL)
        self.assertEqual(job.wait(), expected)

    def test_a_host_with_a_server_may_be_lost(self):
        """Its rows are at the other server, and come to the spare host. Then they are on two hosts again, so that one may be lost, too."""
        expected = self.one_host(2, keys=50, more=("--server_num", "1"))
        fleet = self.fleet(4)
        job = Job(self.folder / "rows", fleet, 2, 1, keys=50, hold=40, more=("--server_num", "2"))
        for host in (2, 3):
            job.start(host, "--server_num", "2", "--spare_host=True")
        job.until_ready(lambda: len(job.events("waiting")) >= 2, "the spare hosts")
        job.until_step(60)
        fleet.kill(1)
        job.agents.pop(1).wait()
        job.until_step(120)
        second = 2 if "host host2 takes over" in job.logs() else 3
        fleet.kill(second)
        job.agents.pop(second).wait()
        self.assertEqual(job.wait(), expected)
        self.assertIn("a lost host takes no rows along", job.logs())

    def test_a_host_with_a_server_may_be_drained(self):
        expected = self.one_host(2, keys=50, steps=900, pause=0, more=("--server_num", "1"))
        fleet = self.fleet(3)
        job = Job(self.folder / "drain-rows", fleet, 2, 1, keys=50, steps=900, pause=3000, hold=40, more=("--server_num", "2"))
        job.start(2, "--server_num", "2", "--spare_host=True")
        job.until_ready(lambda: job.events("waiting"), "the spare host")
        job.until_step(60)
        ask = [str(BUILD / "bin/holdfast"), "drain", "host1"]
        said = fleet.popen(0, ask, env=job.env, stdout=subprocess.PIPE, text=True).communicate(timeout=LIMIT_S)[0]
        self.assertEqual(said, "2 ranks of host host1 move to host host2\n")
        self.assertEqual(job.ended(job.agents.pop(1), time.monotonic() + LIMIT_S), 0)
        self.assertEqual(job.wait(), expected)

    def test_the_scheduler_may_die(self):
        expected = self.one_host(4)
        job = Job(self.folder / "scheduler", self.fleet(2), 2, 2)
        job.until_step(40)
        os.kill(*job.pids(0, "MS_SCHED"), signal.SIGKILL)
        job.until_step(150)
        os.kill(random.choice(job.pids(1)), signal.SIGKILL)
        self.assertEqual(job.wait(), expected)

    def test_a_cut_of_a_moment_costs_nothing_but_time(self):
        expected = self.one_host(4)
        fleet = self.fleet(2)
        job = Job(self.folder / "cut", fleet, 2, 2, env={"HOLDFAST_HOST_TIMEOUT": "4"})  # On a busy machine more is silent than the cut.
        job.until_step(40)
        fleet.cut(0, 1)
        time.sleep(0.2)  # The length of the cut.
        fleet.heal()
        self.assertEqual(job.wait(), expected)
        self.assertEqual(len(job.events("recovered")), 1)  # Only at the job's start.

    def test_a_cut_of_seconds_costs_no_bit(self):
        expected = self.one_host(4)
        fleet = self.fleet(2)
        job = Job(self.folder / "long-cut", fleet, 2, 2, hold=40)  # The cut comes before the job's end, however late this is.
        job.until_step(39)
        fleet.cut(0, 1)
        (job.out / "go").touch()
        job.until(lambda: len(job.events("fault")) >= 2, "the loss of the host")
        fleet.heal()
        self.assertEqual(job.wait(), expected)

    def test_links_cut_on_order_cost_no_bit(self):
        """Also while the job recovers from the end of a rank of the other host."""
        expected = self.one_host(4)
        job = Job(self.folder / "cut-links", self.fleet(2), 2, 2, spares=1, hold=40, more=["--allow_inject"],
                  env={"HOLDFAST_HOST_TIMEOUT": "4"})  # A busy machine is to lose links here, no host.
        job.until_step(39)
        ordered = [("cut", 0, 60, "compute"), ("cut", 3, 100, "commit"), ("kill", 2, 150, "sum"), ("cut", 0, 150, "recovery")]
        for kind, rank, step, phase in ordered:
            code, said = job.inject(kind, "--rank", str(rank), "--at-step", str(step), "--phase", phase)
            self.assertEqual(code, 0, said)
        (job.out / "go").touch()
        self.assertEqual(job.wait(), expected)
        logs = job.logs()
        self.assertIn("drill: rank 3 ", logs)
        self.assertIn("has lost its connections to other hosts", logs)
        self.assertGreaterEqual(len(job.events("recovered")), 4)

    def test_a_host_killed_on_order_costs_no_bit(self):
        expected = self.one_host(4)
        job = Job(self.folder / "killed-host", self.fleet(3), 2, 2, spares=1, hold=40, more=["--allow_inject"])
        job.start(2, "--spare_host=True", "--allow_inject")
        job.until(lambda: len(job.events("waiting")) >= 4, "all spares")
        for refused, why in ((("kill", "--host", "host0"), "has the scheduler"), (("kill", "--host", "host7"), "the job has host0, host1, host2"),
                             (("flip", "--host", "host1"), "can only be killed or stopped")):
            code, said = job.inject(*refused)
            self.assertEqual(code, 1, said)
            self.assertIn(why, said)
        pids = [job.agents[1].pid, *job.pids(1)]
        code, said = job.inject("kill", "--host", "host1")
        self.assertEqual(code, 0, said)
        self.assertIn("drill: host host1 is to be killed (SIGKILL): its launcher and all its processes, with 2 ranks", said)
        self.assertEqual(job.ended(job.agents.pop(1), time.monotonic() + LIMIT_S), -signal.SIGKILL)
        job.until(lambda: not any(alive(pid) for pid in pids), "the end of all processes of host1")
        (job.out / "go").touch()
        self.assertEqual(job.wait(), expected)
        self.assertIn("host host1 is lost with 2 ranks; host host2 takes over", (job.out / "msrun0.log").read_text())

    def test_a_host_stopped_on_order_costs_no_bit(self):
        expected = self.one_host(4)
        job = Job(self.folder / "stopped-host", self.fleet(3), 2, 2, hold=40, more=["--allow_inject"])
        job.start(2, "--spare_host=True", "--allow_inject")
        job.until_ready(lambda: len(job.events("waiting")) >= 2, "the spare host")
        job.until_step(60)
        code, said = job.inject("stop", "--host", "host1")
        self.assertEqual(code, 0, said)
        job.until(lambda: any(event["generation"] == 2 for event in job.events("resume")), "the spare host's part")
        job.agents.pop(1).kill()
        self.assertEqual(job.wait(), expected)

    def test_a_lost_host_whose_processes_start_elsewhere_costs_no_bit(self):
        expected = self.one_host(4)
        fleet = self.fleet(3)
        job = Job(self.folder / "lost", fleet, 2, 2)
        job.until_step(60)
        fleet.kill(1)
        job.agents.pop(1).wait()
        job.start(1, at=2)
        self.assertEqual(job.wait(), expected)

    def test_a_spare_host_takes_the_place_of_a_lost_one(self):
        expected = self.one_host(4)
        fleet = self.fleet(3)
        job = Job(self.folder / "spare", fleet, 2, 2, hold=40)
        job.start(2, "--spare_host=True")
        job.until_ready(lambda: len(job.events("waiting")) >= 2, "the spare host")
        job.until_step(60)
        killed_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        fleet.kill(1)
        job.agents.pop(1).wait()
        self.assertEqual(job.wait(), expected)
        steps = sorted(job.events("step"), key=lambda event: event["t_ns"], reverse=True)
        first = {event["rank"]: event["t_ns"] for event in steps if event["generation"] == 2}
        self.assertEqual(set(first), {0, 1, 2, 3})
        self.assertIn("host host1 is lost with 2 ranks; host host2 takes over", (job.out / "msrun0.log").read_text())
        self.assertIn("spare_2_", (job.out / "logs2/worker_3.log").read_text(), "where its output goes on")
        print(f"all ranks had made a step {(max(first.values()) - killed_ns) / 1e6:.0f} ms after the loss", file=sys.stderr)

    def test_a_lost_host_may_have_many_ranks(self):
        many = {"steps": 20, "elements": 1000, "pause": 0}
        expected = self.one_host(34, **many)
        fleet = self.fleet(3)
        job = Job(self.folder / "many", fleet, 2, 17, hold=8, **many)
        job.start(2, "--spare_host=True")
        job.until_step(7)
        job.until(lambda: len(job.events("waiting")) >= 17, "the spare host")
        fleet.kill(1)
        job.agents.pop(1).wait()
        (job.out / "go").touch()
        self.assertEqual(job.wait(), expected)

    def test_a_host_that_is_lost_before_the_job_begins_is_started_again(self):
        expected = self.one_host(4)
        fleet = self.fleet(3)
        job = Job(self.folder / "early", fleet, 1, [2, 1, 1])
        job.start(1)
        job.until(lambda: "3 of 4 workers are here" in job.logs(), "the third worker")
        fleet.kill(1)
        fleet.up_again(1)
        job.agents.pop(1).wait(LIMIT_S)
        for host in (1, 2):
            job.start(host)
        self.assertEqual(job.wait(), expected)

    def test_a_job_whose_last_state_is_lost_on_its_way_ends(self):
        """A host is lost, and then the last copy of the state while it is sent to a spare host. Half a copy is no copy."""
        large = {"steps": 16, "elements": 40_000_000, "private": "same", "pause": 0}
        fleet = self.fleet(3)
        job = Job(self.folder / "lost", fleet, 2, 1, hold=3, **large)
        job.start(2, "--spare_host=True")
        job.until_ready(lambda: job.events("waiting"), "the spare host")
        job.until_step(4)
        givers = job.pids(0)
        fleet.kill(1)
        job.agents.pop(1).wait()

        def repairs(by_rank):
            return [event for event in job.events("repair") if 4 <= event["version"] <= 16 and ("rank" in event) == by_rank]
        job.until(lambda: repairs(by_rank=False), "the order to receive the state")
        for pid in givers:  # Stop what sends the state.
            os.kill(pid, signal.SIGSTOP)
        fleet.run(0, ["sh", "-c", "rm /dev/shm/holdfast-*/*/rank-0.arena"], check=True)
        for pid in givers:
            os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + LIMIT_S
        codes = {job.ended(agent, end) for agent in job.agents.values()}
        self.assertTrue(all(isinstance(code, int) and code > 0 for code in codes), f"{codes}\n{job.logs()}")
        self.assertIn("the state can not be recovered: it was at step ", job.logs())
        self.assertEqual(repairs(by_rank=True), [], "it came before the state was lost")

    def test_a_spare_host_that_nobody_needs_ends_well(self):
        job = Job(self.folder / "unneeded", self.fleet(2), 1, 2, hold=40, env={"HOLDFAST_JOB": "unneeded"})
        job.start(1, "--spare_host=True")
        ask = [str(BUILD / "bin/holdfast"), "status"]

        def is_known():
            said = job.fleet.popen(0, ask, env=job.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            return "host1" in said.communicate(timeout=LIMIT_S)[0]

        # If the job ended before its spare host found it, the spare host would wait for a scheduler.
        job.until_ready(is_known, "the spare host")
        job.wait()

    def test_a_host_may_be_oversubscribed(self):
        expected = self.one_host(4)
        fleet = self.fleet(2)
        job = Job(self.folder / "over", fleet, 2, 2, more=["--oversubscribe=True"])
        job.until_step(60)
        fleet.kill(1)
        job.agents.pop(1).wait()
        self.assertEqual(job.wait(), expected)

    def test_a_live_host_whose_connections_are_all_reset_is_not_lost(self):
        """The reset is like a firewall's flush. The host is stopped, so that it can not reconnect for a while."""
        expected = self.one_host(4, steps=900, pause=0)
        fleet = self.fleet(3)
        job = Job(self.folder / "reset", fleet, 2, 2, steps=900, pause=3000, env={"HOLDFAST_HOST_TIMEOUT": "4"})
        job.start(2, "--spare_host=True")
        job.until_step(60)
        stopped = [job.agents[1].pid, *job.pids(1)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        fleet.run(1, ["ss", "-K", "state", "established"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(1)  # How long it is away: several times what once made it count as lost.
        for pid in reversed(stopped):
            os.kill(pid, signal.SIGCONT)
        self.assertEqual(job.wait(), expected)
        self.assertEqual(job.events("fault"), [], job.logs())
        self.assertNotIn("is lost with", job.logs())

    def test_a_host_that_comes_back_is_a_spare_host(self):
        long = {"steps": 900, "pause": 3000}  # The job has to last until the host has returned.
        expected = self.one_host(4, steps=900, pause=0)
        fleet = self.fleet(3)
        job = Job(self.folder / "back", fleet, 2, 2, hold=40, **long)
        job.start(2, "--spare_host=True")
        job.until_ready(lambda: len(job.events("waiting")) >= 2, "the spare host")
        job.until_step(60)
        fleet.cut(1)
        job.until(lambda: any(event["generation"] == 2 for event in job.events("resume")), "the spare host's part")
        fleet.heal()
        job.until(lambda: "waits as a spare host" in (job.out / "msrun1.log").read_text(), "the host that was cut off")
        fleet.kill(2)
        job.agents.pop(2).wait()
        self.assertEqual(job.wait(), expected)

    def test_ranks_move_back_to_a_host_that_comes_back(self):
        expected = self.one_host(6, steps=900, pause=0)
        fleet = self.fleet(3)
        job = Job(self.folder / "move-back", fleet, 3, 2, steps=900, pause=3000, more=["--oversubscribe=True"])
        job.until_step(40)
        fleet.kill(2)
        job.agents.pop(2).wait()
        job.until_step(100)
        fleet.up_again(2)
        job.start(2)
        job.until(lambda: any("move to host host2" in event.get("text", "") for event in job.events("stop")), "the move")
        self.assertEqual(job.wait(), expected)

    def test_a_drained_host_ends_well_and_costs_no_bit(self):
        expected = self.one_host(4, steps=900, pause=0)
        fleet = self.fleet(3)
        job = Job(self.folder / "drain", fleet, 2, 2, steps=900, pause=3000, hold=40)
        job.start(2, "--spare_host=True")
        job.until_ready(lambda: len(job.events("waiting")) >= 2, "the spare host")
        job.until_step(60)
        ask = [str(BUILD / "bin/holdfast"), "drain", "host1"]
        asked_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        said = fleet.popen(0, ask, env=job.env, stdout=subprocess.PIPE, text=True).communicate(timeout=LIMIT_S)[0]
        self.assertEqual(said, "2 ranks of host host1 move to host host2\n")
        self.assertEqual(job.ended(job.agents.pop(1), time.monotonic() + LIMIT_S), 0)
        self.assertLess(job.newest_step(), 900)
        self.assertEqual(job.wait(), expected)
        steps = sorted(job.events("step"), key=lambda event: event["t_ns"], reverse=True)
        first = {event["rank"]: event["t_ns"] for event in steps if event["generation"] == 2}
        self.assertEqual(set(first), {0, 1, 2, 3})
        print(f"all ranks had made a step {(max(first.values()) - asked_ns) / 1e6:.0f} ms after the command", file=sys.stderr)

    def test_hosts_may_be_unequal(self):
        expected = self.one_host(3)
        fleet = self.fleet(3)
        job = Job(self.folder / "unequal", fleet, 2, [2, 1], hold=40)
        job.start(2, "--spare_host=True")
        job.until_ready(lambda: len(job.events("waiting")) >= 2, "the spare host")
        job.until_step(60)
        fleet.kill(1)
        job.agents.pop(1).wait()
        self.assertEqual(job.wait(), expected)

    def test_the_launcher_of_the_scheduler_s_host_may_be_continued(self):
        expected = self.one_host(4, steps=600)
        job = Job(self.folder / "continued", self.fleet(2), 2, 2, steps=600, pause=4000)
        job.until_step(60)
        job.agents.pop(0).kill()
        job.start(0, "--continue")
        self.assertEqual(job.wait(), expected)

    def test_hosts_are_lost_one_after_the_other(self):
        expected = self.one_host(4, steps=900)
        fleet = self.fleet(2)
        job = Job(self.folder / "again", fleet, 2, 2, steps=900)  # None is lost as the job ends.
        for step in range(60, 600, 120):
            job.until_step(step)
            fleet.kill(1)
            job.agents.pop(1).wait()
            fleet.up_again(1)
            job.start(1)
        self.assertEqual(job.wait(), expected)

    def test_without_replicas_what_only_a_lost_host_had_ends_the_job_by_name(self):
        fleet = self.fleet(2)
        job = Job(self.folder / "own", fleet, 2, 2, steps=1_000_000, env={"HOLDFAST_REPLICAS": "0"})  # Only the loss ends it.
        job.until_step(60)
        fleet.kill(1)
        job.agents.pop(1).wait()
        fleet.up_again(1)
        job.start(1)
        end = time.monotonic() + LIMIT_S
        self.assertNotEqual(job.ended(job.agents[0], end), 0)
        self.assertIn("no copy of the private part of rank 2 is left", job.logs())
        self.assertIn("a lost host ends this job", job.logs())

    def test_under_tls(self):
        fleet = self.fleet(3)
        papers = self.folder / "tls"
        subprocess.run([BUILD / "bin/holdfast", "tls", "new", papers, "--hosts", fleet.address(0)], check=True, capture_output=True)
        env = {"HOLDFAST_TLS_CONFIG": str(papers / "config.json"), "HOLDFAST_TLS_CLIENT_PASSWORD_FILE": str(papers / "client.password"),
               "HOLDFAST_TLS_SERVER_PASSWORD_FILE": str(papers / "server.password")}
        servers = ("--server_num", "2")
        expected = self.one_host(4, keys=50, more=servers)
        job = Job(self.folder / "under-tls", fleet, 2, 2, keys=50, more=servers, env=env)
        job.until_step(60)
        os.kill(random.choice(job.pids(1)), signal.SIGKILL)
        job.until_step(150)
        fleet.kill(1)
        job.agents.pop(1).wait()
        job.start(1, *servers, at=2)
        self.assertEqual(job.wait(), expected)


if __name__ == "__main__":
    BUILD = Path(sys.argv.pop(2)).resolve()
    sys.argv.pop(1)
    unittest.main(verbosity=2)
