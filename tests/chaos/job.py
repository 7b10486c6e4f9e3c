"""Runs one job under msrun, kills processes of it, and reads its trace.

Processes are found through the trace (HOLDFAST_TRACE): every process writes its pid and rank there.
Nothing here knows how Holdfast works inside.
"""
import ctypes
import json
import os
import random
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


def leftovers(job):
    """Files of this job that were not removed."""
    return [str(p) for base in ("/dev/shm", "/tmp") for p in Path(base).glob(f"holdfast-{os.getuid()}/{job}*")]


def die_with_parent():
    """To be called in a child: makes it end with its parent, so that a killed test leaves no job."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Job:
    """msrun with a program. A context manager, which leaves no process of the job running."""

    def __init__(self, bin_folder, folder, program, workers, spares=0, max_restarts=10, env=None):
        self.folder = Path(folder)
        self.trace_folder = self.folder / "trace"
        self.trace_folder.mkdir(parents=True)
        self.trace = Trace(self.trace_folder)
        self.name = f"chaos-{os.getpid()}-{random.getrandbits(48):x}"
        command = [str(Path(bin_folder) / "msrun"), f"--worker_num={workers}", f"--local_worker_num={workers}",
                   f"--master_port={free_port()}", f"--log_dir={self.folder / 'log'}", "--join=True",
                   f"--max_restarts={max_restarts}", f"--spares={spares}", *map(str, program)]
        environment = {**os.environ, **(env or {}), "HOLDFAST_JOB": self.name, "HOLDFAST_TRACE": str(self.trace_folder)}
        self.output = open(self.folder / "msrun.txt", "wb")
        self.process = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT, env=environment,
                                        stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.output.close()

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
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"the job did not end within {limit} s: a hang\n{self.text()}") from error
        self.trace.poll()
        return code
