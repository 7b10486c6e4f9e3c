"""Runs one job under msrun, kills processes of it, and reads its trace.

Processes are found through the trace (HOLDFAST_TRACE): every process writes its pid and rank there.
Nothing here knows how Holdfast works inside.
"""
import ctypes
import functools
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path


class Trace:
    """What all processes of a job have traced so far. poll() reads more."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.read = {}
        self.lines = []

    def poll(self):
        for path in self.folder.glob("*.jsonl"):
            with open(path, "rb") as file:
                file.seek(self.read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self.read[path] = self.read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self.lines.append(json.loads(line))
        return self.lines

    def events(self, name):
        return [line for line in self.lines if line["event"] == name]

    def pid_of(self, rank):
        """The pid of the newest process that has this rank; None if there is none yet."""
        found = [x for x in self.lines if x.get("rank") == rank and x["event"] in ("repair", "resume", "step")]
        return max(found, key=lambda x: x["t_ns"])["pid"] if found else None

    def pids_of(self, rank):
        """The pids of all processes that trained as this rank."""
        return {x["pid"] for x in self.events("resume") if x.get("rank") == rank}

    def scheduler_pid(self):
        found = [x for x in self.events("start") if x.get("role") == "scheduler"]
        return max(found, key=lambda x: x["t_ns"])["pid"] if found else None

    def newest_step(self):
        return max((x["step"] for x in self.events("step")), default=0)

    def ready_spares(self):
        """The number of spares that are ready and wait for a place."""
        gone = {e["pid"] for e in self.events("promoted")}
        return sum(alive(pid) for pid in {e["pid"] for e in self.events("waiting")} - gone)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def processes_of(job):
    """Pids of all living processes whose environment names this job."""
    needle = f"HOLDFAST_JOB={job}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if needle in (entry / "environ").read_bytes() and alive(int(entry.name)):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def die_with_parent():
    """To be called in a child: makes it end with its parent, so that a killed test leaves no job."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Job:
    """msrun with a program. A context manager, which leaves no process of the job running.

    `fleet`: two hosts (tools/fleet), each of which has half of the workers; None: all are on this machine.
    """

    def __init__(self, bin_folder, folder, program, workers, spares=0, max_restarts=10, env=None, fleet=None):
        self.folder = Path(folder)
        self.trace_folder = self.folder / "trace"
        self.trace_folder.mkdir(parents=True)
        self.trace = Trace(self.trace_folder)
        self.name = f"chaos-{os.getpid()}-{random.getrandbits(48):x}"
        self.fleet = fleet
        hosts = 1 if fleet is None else 2
        command = [str(Path(bin_folder) / "msrun"), f"--worker_num={workers}", f"--local_worker_num={workers // hosts}",
                   f"--master_port={free_port()}", f"--log_dir={self.folder / 'log'}", "--join=True",
                   f"--max_restarts={max_restarts}", f"--spares={spares}"]
        self.environment = {**os.environ, **(env or {}), "HOLDFAST_JOB": self.name, "HOLDFAST_TRACE": str(self.trace_folder)}
        if fleet is not None:
            command.append(f"--master_addr={fleet.address(0)}")
            token = self.folder / "token"
            token.touch(mode=0o600)
            token.write_text(secrets.token_hex(32))
            self.environment["HOLDFAST_TOKEN_FILE"] = str(token)
        self.output = open(self.folder / "msrun.txt", "ab")
        how = {"stdout": self.output, "stderr": subprocess.STDOUT, "env": self.environment, "stdin": subprocess.DEVNULL}
        if fleet is None:
            self.agents = [subprocess.Popen([*command, *map(str, program)], preexec_fn=die_with_parent, **how)]
        else:
            self.agents = [fleet.popen(host, [*command, f"--node_rank={host}", *map(str, program)], dies_with_caller=True, **how)
                           for host in range(hosts)]
        self.process = self.agents[0]  # That of the scheduler's host.

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for agent in self.agents:
            if agent.poll() is None:
                agent.terminate()
                try:
                    agent.wait(20)
                except subprocess.TimeoutExpired:
                    agent.kill()
                    agent.wait()
        self.output.close()

    def ask(self, *command):
        """Runs a command on the scheduler's host. Returns its exit code and what it has said."""
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "env": self.environment, "text": True}
        run = subprocess.run if self.fleet is None else functools.partial(self.fleet.run, 0)
        done = run([str(word) for word in command], **how)
        return done.returncode, done.stdout.strip()

    def leftovers(self):
        """Files of this job that were not removed."""
        if self.fleet is None:
            return [str(p) for base in ("/dev/shm", "/tmp") for p in Path(base).glob(f"holdfast-{os.getuid()}/{self.name}*")]
        look = f"ls -d /dev/shm/holdfast-*/{self.name}* /tmp/holdfast-*/{self.name}* 2>/dev/null; true"
        return [path for host in (0, 1)
                for path in self.fleet.run(host, ["sh", "-c", look], stdout=subprocess.PIPE, text=True, check=True).stdout.split()]

    def text(self):
        return (self.folder / "msrun.txt").read_text(errors="replace")

    def until(self, condition, limit=60, what="the condition", every=0.001):
        """Polls the trace every `every` seconds until condition(trace) is true. False: the job ended before."""
        end = time.monotonic() + limit
        while True:
            self.trace.poll()
            if condition(self.trace):
                return True
            if self.process.poll() is not None:
                return False
            if time.monotonic() > end:
                raise TimeoutError(f"{what} did not come within {limit} s\n{self.text()}")
            time.sleep(every)

    def wait(self, limit=120):
        """Waits for the end of all agents. Returns the first exit code that is not 0."""
        end = time.monotonic() + limit
        try:
            codes = [agent.wait(max(0.1, end - time.monotonic())) for agent in self.agents]
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"the job did not end within {limit} s: a hang\n{self.text()}") from error
        self.trace.poll()
        return next((code for code in codes if code != 0), 0)
