#!/usr/bin/env python3
"""A job over several hosts has the bits that it has on one, and keeps them when processes die.

tests/many_hosts.py BUILD [TEST...]   needs what tools/hosts needs, see docs/testing-hosts.md
"""
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE / "tools"))
from fleet import Fleet, HostsError, linux  # noqa: E402

BIN = Path(sys.argv[1] if len(sys.argv) > 1 else "build/release").resolve() / "bin"
LIMIT_S = 120  # Reached by a hang alone.


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def setUpModule():
    why = linux.lacking()
    if why and os.environ.get("HOLDFAST_TEST_WITHOUT_HOSTS") == "1":
        raise unittest.SkipTest(why)
    if why:
        raise HostsError(f"no hosts can be had here, so nothing was tested: {why}. HOLDFAST_TEST_WITHOUT_HOSTS=1 leaves this test out")


def words(*pairs):
    """--name value, for each pair that has a value."""
    return [word for name, value in pairs for word in (f"--{name}", str(value))]


class Job:
    """The toy on `hosts` hosts with `each` ranks on each; or all on this machine, without hosts."""

    def __init__(self, folder, fleet, hosts, each, *, steps=300, elements=20_000, pause=1000, optimizer="adam", spares=0, env=()):
        self.out = Path(folder)
        self.out.mkdir()
        self.fleet, self.hosts, self.each = fleet, hosts, each
        token = self.out / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self.env = {**os.environ, "HOLDFAST_JOB": f"many-{secrets.token_hex(4)}", "HOLDFAST_TOKEN_FILE": str(token),
                    "HOLDFAST_TRACE": str(self.out / "trace"), **dict(env)}
        (self.out / "trace").mkdir()
        self.program = [str(BIN / "toy"), *words(("steps", steps), ("out", self.out), ("optimizer", optimizer),
                                                 ("elements", elements), ("pause", pause))]
        self.spares, self.port = spares, free_port()
        self.agents = {}
        for host in range(hosts):
            self.start(host)

    def start(self, host):
        options = words(("worker_num", self.hosts * self.each), ("local_worker_num", self.each), ("node_rank", host),
                        ("master_port", self.port), ("join", True), ("log_dir", self.out / f"logs{host}"), ("spares", self.spares))
        if self.fleet:
            options += words(("master_addr", self.fleet.address(0)))
        command = [str(BIN / "msrun"), *options, *self.program]
        log = open(self.out / f"msrun{host}.log", "ab")  # noqa: SIM115  The agent writes it.
        kwargs = {"env": self.env, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        self.agents[host] = self.fleet.popen(host, command, **kwargs) if self.fleet else subprocess.Popen(command, **kwargs)

    def wait(self):
        """The state of each rank, once all agents have ended well."""
        end = time.monotonic() + LIMIT_S
        codes = {host: agent.wait(max(0.1, end - time.monotonic())) for host, agent in self.agents.items()}
        assert set(codes.values()) == {0}, f"{codes}\n{self.logs()}"
        return [(self.out / f"rank-{rank}").read_bytes() for rank in range(self.hosts * self.each)]

    def logs(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.out.rglob("*.log")))

    def events(self, kind):
        """The traced events of a kind, so far; each a line of JSON."""
        lines = []
        for path in (self.out / "trace").iterdir():
            lines += [line for line in path.read_text(errors="replace").splitlines() if f'"{kind}"' in line]
        return lines

    def until_step(self, step):
        """Waits until some rank has made this step."""
        self.until(lambda: any(f'"step":{n}' in line for n in range(step, step + 20) for line in self.events("step")), f"step {step}")

    def until(self, condition, what):
        end = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < end, f"{what} did not come\n{self.logs()}"
            dead = {host: agent.returncode for host, agent in self.agents.items() if agent.poll() not in (None, 0)}
            assert not dead, f"{what} did not come: {dead}\n{self.logs()}"
            time.sleep(0.02)

    def pids(self, host, role="worker"):
        """Of the workers' processes on a host, as this machine numbers them."""
        found = []
        for process in Path("/proc").iterdir():
            if not process.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                environment = (process / "environ").read_bytes().split(b"\0")
                command = (process / "cmdline").read_bytes()
                ours = f"HOLDFAST_JOB={self.env['HOLDFAST_JOB']}".encode() in environment
                on_host = any(e.startswith(f"MS_NODE_ID=".encode()) and int(e.split(b"=")[1]) // self.each == host for e in environment)
                if ours and on_host and command.startswith(self.program[0].encode()):
                    found.append(int(process.name))
        return found


class ManyHosts(unittest.TestCase):
    def setUp(self):
        # Beside the sources: every host has a /tmp of its own.
        BIN.parent.mkdir(exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="many-hosts-", dir=BIN.parent)
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def fleet(self, count):
        fleet = Fleet.up(count, f"many-{os.getpid()}")
        self.addCleanup(fleet.down)
        return fleet

    def one_host(self, ranks, **how):
        return Job(self.folder / f"one-{secrets.token_hex(2)}", None, 1, ranks, **how).wait()

    def test_same_bits_as_on_one_host(self):
        expected = self.one_host(4, pause=0)
        self.assertEqual(Job(self.folder / "two", self.fleet(2), 2, 2, pause=0).wait(), expected)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
