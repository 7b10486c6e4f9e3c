#!/usr/bin/env python3
"""A host is lost: how long until all ranks have made a new step, by size of state, and where the time goes. Beside it torchrun.

hosts_fault.py --build build/release --python PYTHON [--rounds 3] [--sizes 1,100,1000] [--only ddp,toy,torchrun] [--faults silent,loud]

PYTHON has torch. Two hosts with one rank on each and a spare host, namespaces of this machine (docs/testing-hosts.md). Host 1 is lost,
at a random instant of a step: `silent`, no packet from it any more; or `loud`, SIGKILL to all its processes at once while its network
lives. Each round is a job of its own. ddp: four layers under DistributedDataParallel with Adam, in State; toy: bin/toy, whose private
state lies with a holder. --sizes are MB of parameters and optimizer's state together (12 bytes a parameter).
Of each phase the milliseconds that it took, median (least-greatest) over the rounds:
  detection  loss -> the scheduler takes the rank for lost         stop   -> all have stopped and the plan is made
  transfer   -> the last rank has its state (the spare host's)     reform -> the last rank goes on in the new group
  step       -> the last rank has made a step                      all    loss -> all ranks have made a new step
  usual      the healthy step                                      link   the state's bytes over one raw TCP socket, host 0 to host 2
  share      link / (all - detection - usual): of the link's rate, what the transfer reaches if all but these two were transfer

torchrun: --nnodes 2:2, the spare host's agent waits in the rendezvous' redundancy list; a checkpoint at every --every-th step in a folder
that all hosts see; keep-alive 1 s, lost after 3 (whole seconds only; after 2 it loses live hosts), Gloo's timeout --gloo-timeout, monitor interval 0.05 s.
"""
import argparse
import contextlib
import os
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from common import fleet_of  # noqa: E402
from job import Trace  # noqa: E402

START_S = 120  # Only a hang takes so long.
WARM_S = 20  # From a spare's first words to where it waits. A spare that takes longer counts as cold, and the line says so.
LIMIT_S = 120  # From the loss. A recovery that takes longer counts as never.
HEALTHY, HEALTHY_S = 12, 1  # At least so many steps, and seconds, before the loss.
LOST, STAYS, SPARE = 1, 0, 2  # The hosts. Host 0 has the scheduler, or torchrun's store.
PHASES = ("detection", "stop", "transfer", "reform", "step")
PROGRAM = """
import json, os, sys, time
import torch, torch.distributed as dist
folder, parameters, how, every, timeout = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
width = max(8, round((parameters / 4) ** 0.5))
torch.set_num_threads(1)
torch.manual_seed(1)
data = [torch.randn(2, width) for _ in range(8)]
if how == "ddp":
    import holdfast.torch as hf
    hf.init()
else:
    import datetime
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout))
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)
saved, made = os.path.join(folder, "checkpoint.pt"), 0
if how != "ddp" and os.path.exists(saved):
    checkpoint = torch.load(saved)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    made = checkpoint["step"]
    del checkpoint
model = torch.nn.parallel.DistributedDataParallel(model)
def step(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
go = os.path.join(folder, "go")  # The spare host's processes share two cores with these, unlike those of real hosts.
if how == "ddp":  # Its steps are in the trace.
    for x in hf.State(model, optimizer).steps(data, epochs=10**6):
        while not os.path.exists(go): time.sleep(0.01)
        step(x)
rank, started = dist.get_rank(), time.monotonic_ns()
with open(f"{folder}/trace/rank-{rank}-{started}.jsonl", "a", buffering=1) as log:
    while True:
        while made and not os.path.exists(go): time.sleep(0.01)
        made += 1
        step(data[made % 8])
        log.write(json.dumps({"event": "step", "t_ns": time.monotonic_ns(), "started": started, "rank": rank, "step": made}) + "\\n")
        if rank == 0 and made % every == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": made}, saved + ".new")
            os.replace(saved + ".new", saved)
"""
RAW = """
import socket, sys, time
host, size = sys.argv[1], int(sys.argv[2])
data = memoryview(bytearray(b"x") * size)
if host == "serve":
    with socket.create_server(("", 7100)) as server:
        peer = server.accept()[0]
        for _ in range(3):
            at = 0
            while at < size:
                at += peer.recv_into(data[at:])
            peer.sendall(b"y")
else:
    for _ in range(200):
        try: peer = socket.create_connection((host, 7100)); break
        except OSError: time.sleep(0.05)
    times = []
    for _ in range(3):
        before = time.perf_counter()
        peer.sendall(data); peer.recv(1)
        times.append((time.perf_counter() - before) * 1e3)
    print(sorted(times)[1])
"""
# On a virtual machine, a GB of memory that was not used for a while may take 5 s instead of 0.6 s. A host that is lost silently frees its
# memory at that moment. This program holds memory until the loss, so that some is ready after a loud loss too.
HELD_MEMORY = """
import mmap, sys
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
for _ in range(size >> 20): memory.write(b"x" * (1 << 20))
print("held", flush=True)
sys.stdin.read()
"""


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Job:
    """One job on a fleet of three hosts. Its processes end with the fleet."""

    def __init__(self, options, fleet, folder, how, size):
        self.options, self.fleet, self.folder, self.how = options, fleet, folder, how
        self.mark = f"BENCH_MARK={secrets.token_hex(8)}"
        self.cold = False  # Whether the spare was not ready at the loss.
        self.parameters = round(size * 1e6 / 12)
        (folder / "trace").mkdir()
        self.trace = Trace(folder / "trace")
        (folder / "program.py").write_text(PROGRAM)
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        bare = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "HOLDFAST_", "MS_"))}
        self.env = {**bare, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
        if how == "torchrun":
            # In torch 2.13 restarted workers find the dead ones' addresses in the store that they share with torchrun.
            self.env |= {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        else:
            self.env |= {"PYTHONPATH": str(options.build / "python"), "HOLDFAST_TOKEN_FILE": str(token), "HOLDFAST_TRACE": str(folder / "trace"),
                         "HOLDFAST_JOB": f"fault-{secrets.token_hex(4)}"}
        self.agents = {host: self.start(host) for host in (STAYS, LOST)}
        if how == "torchrun":  # Start it last: it must not be one of the first two.
            self.until(lambda: self.healthy(1), "the first step")
        self.agents[SPARE] = self.start(SPARE)
        self.until(self.spare_waits, "the spare host")
        self.held = subprocess.Popen([sys.executable, "-c", HELD_MEMORY, str(100 + round(5 * size))], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.held.stdout.readline()
        (folder / "go").touch()
        step, begin = self.newest_step(), now()
        self.until(lambda: self.healthy(step + HEALTHY) and now() > begin + HEALTHY_S * 1e9, "healthy steps")

    def command(self, host):
        options, folder, first = self.options, self.folder, self.fleet.address(STAYS)
        program = [folder / "program.py", folder, self.parameters, self.how, options.every, options.gloo_timeout]
        if self.how == "toy":
            return [options.build / "bin/msrun", "--worker_num=2", "--local_worker_num=1", f"--node_rank={host}", "--master_port=8118", f"--master_addr={first}",
                    "--join=True", f"--log_dir={folder}/log{host}", "--spares=0", *(["--spare_host=True"] if host == SPARE else []), options.build / "bin/toy",
                    "--steps", 10**6, "--out", folder, "--optimizer", "adam", "--elements", self.parameters]
        if self.how == "ddp":
            return [options.python, "-m", "holdfast", "run", "--nnodes=2:3", f"--node-rank={host}", "--nproc-per-node=1", f"--rdzv-endpoint={first}",
                    f"--log-dir={folder}/log{host}", *program]
        rdzv = f"is_host={'true' if host == STAYS else 'false'},keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1,close_timeout=1"
        return [options.python, "-m", "torch.distributed.run", "--nnodes=2:2", "--nproc-per-node=1", "--max-restarts=20", "--rdzv-backend=c10d",
                f"--rdzv-endpoint={first}:29400", "--rdzv-id=bench", f"--rdzv-conf={rdzv}", "--monitor-interval=0.05", "--shutdown-timeout=1",
                f"--local-addr={self.fleet.address(host)}", *program]

    def start(self, host):
        name, value = self.mark.split("=")  # Only torchrun's logs show that the spare host's agent waits.
        env = {**self.env, name: f"{value}-{host}", **({"TORCH_LOGS": "+torch.distributed.elastic"} if self.how == "torchrun" else {})}
        with open(self.folder / f"said-{host}.log", "ab") as said:
            return self.fleet.popen(host, [str(word) for word in self.command(host)], env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=self.folder)

    def spare_waits(self):
        if self.how == "torchrun":
            return b"added itself to the redundancy list" in (self.folder / f"said-{SPARE}.log").read_bytes()
        if self.trace.events("waiting"):
            return True
        started = min((event["t_ns"] for event in self.trace.events("start") if event["role"] == "spare"), default=now())
        self.cold = now() - started > WARM_S * 1e9
        return self.cold

    def newest_step(self):
        return max((event["step"] for event in self.trace.events("step")), default=0)

    def healthy(self, step):
        return {event["rank"] for event in self.trace.events("step") if event["step"] >= step} == {0, 1}

    def until(self, condition, what, limit=START_S):
        end = time.monotonic() + limit
        while True:
            self.trace.poll()
            if found := condition():
                return found
            dead = {host: agent.returncode for host, agent in self.agents.items() if agent.poll() is not None}
            if time.monotonic() > end or dead:
                raise TimeoutError(f"{self.how}: {what} did not come within {limit} s; ended: {dead}\n{self.logs()}")
            time.sleep(0.02)

    def logs(self):
        return "\n".join(f"--- {path.relative_to(self.folder)}\n{path.read_text(errors='replace')[-2500:]}" for path in sorted(self.folder.rglob("*.log")))

    def processes(self, host):
        """The pids of the job's processes on a host, the agent first."""
        needle, found = f"{self.mark}-{host}\0".encode(), []
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if process.name.isdecimal() and needle in (process / "environ").read_bytes():
                    found.append(int(process.name))
        agent = self.agents[host].pid
        return sorted(found, key=lambda pid: (pid != agent, pid))

    def lose(self, fault):
        """Loses host 1; returns the time when that began."""
        pids = self.processes(LOST)
        self.agents.pop(LOST)
        self.held.communicate()
        time.sleep(random.uniform(0, 1.2) * self.usual() / 1e3)
        begin = now()
        if fault == "silent":
            self.fleet.kill(LOST)
        else:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.trace.poll()
        return begin

    def usual(self):
        times = sorted(event["t_ns"] for event in self.trace.events("step") if event["rank"] == STAYS)[-HEALTHY:]
        return statistics.median(b - a for a, b in zip(times, times[1:])) / 1e6

    def is_new(self, event, before):
        return event["started"] not in before if self.how == "torchrun" else event["generation"] > before

    def first_steps(self, before):
        """Waits until all ranks have made a new step; returns rank -> its first. New: of a new generation or process."""

        found = {}
        for event in sorted(self.trace.events("step"), key=lambda event: event["t_ns"]):
            if self.is_new(event, before):
                found.setdefault(event["rank"], event)
        return found if len(found) == 2 else None

    def measure(self, fault):
        usual, steps = self.usual(), self.trace.events("step")
        before = {event["started"] for event in steps} if self.how == "torchrun" else max(event["generation"] for event in steps)
        begin = self.lose(fault)
        try:
            first = self.until(lambda: self.first_steps(before), "a step of all ranks after the loss", LIMIT_S)
        except TimeoutError as error:
            print(error, file=sys.stderr)
            return {"usual": usual, "all": float("inf"), "notes": f"not within {LIMIT_S} s"}
        end = max(event["t_ns"] for event in first.values())
        old = max(event["step"] for event in self.trace.events("step") if not self.is_new(event, before))
        found = {"usual": usual, "all": (end - begin) / 1e6, "lost": old + 1 - min(event["step"] for event in first.values())}
        return found | ({"notes": ""} if self.how == "torchrun" else self.phases(begin, end))

    def phases(self, begin, end):
        """Milliseconds of each phase, and notes. Process ids differ between hosts, so the scheduler's events are known by their fields."""
        lines = sorted(self.trace.lines, key=lambda event: event["t_ns"])
        later = [event for event in lines if begin < event["t_ns"] <= end]

        def last(name, field, least):
            return max([least, *(event["t_ns"] for event in later if event["event"] == name and field in event)])

        fault = min((event["t_ns"] for event in later if event["event"] == "fault"), default=begin)
        plan = last("plan", "text", fault)
        repaired = last("repair", "rank", plan)
        going = last("reform", "ms", repaired)
        marks = [begin, fault, plan, repaired, going, end]
        faults = [event["text"] for event in lines if event["event"] == "fault"]
        generations = {event["generation"] for event in later if event["event"] == "stop" and "text" in event}
        notes = [f"{len(faults)} faults: {faults}"] if len(faults) != 1 else []
        notes += [f"{len(generations)} generations"] if len(generations) != 1 else []
        notes += ["the spare was not ready"] if self.cold else []
        return {**{name: (b - a) / 1e6 for name, a, b in zip(PHASES, marks, marks[1:])}, "notes": "; ".join(notes)}


def raw(options, fleet, folder, size):
    """Milliseconds that the state's bytes take over one raw socket, one way."""
    program = folder / "raw.py"
    program.write_text(RAW)
    words = [options.python, program, "serve", str(round(size * 1e6))]
    server = fleet.popen(SPARE, words, cwd=folder)
    words[2] = fleet.address(SPARE)
    told = fleet.run(STAYS, words, capture_output=True, text=True, timeout=START_S, cwd=folder, check=True)
    server.wait(START_S)
    return float(told.stdout)


def once(options, how, size, fault):
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="hosts-fault-") as name, fleet_of(3, options.build) as fleet:
        link = raw(options, fleet, folder := Path(name), size)
        try:
            found = Job(options, fleet, folder, how, size).measure(fault)
        finally:
            if options.keep:
                kept = options.keep / f"{how}-{size:g}-{fault}-{secrets.token_hex(2)}"
                shutil.copytree(folder / "trace", kept)
                for log in folder.rglob("*.log"):
                    (kept / "-".join(log.relative_to(folder).parts)).write_bytes(log.read_bytes())
    found["link"] = link
    if "detection" in found:
        found["share"] = 100 * link / (found["all"] - found["detection"] - found["usual"])
    print(f"  {how} {size:g} MB {fault}: " + ", ".join(f"{key} {value:.0f}" for key, value in found.items() if key != "notes") + f" {found['notes']}",
          file=sys.stderr, flush=True)
    return found


def cell(rounds, key):
    values = sorted(found[key] for found in rounds if key in found)
    return "-" if not values else f"{statistics.median(values):.0f} ({values[0]:.0f}-{values[-1]:.0f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=lambda text: [float(word) for word in text.split(",")], default=[1, 100, 1000], help="MB of state")
    parser.add_argument("--only", type=lambda text: text.split(","), default=["ddp", "toy", "torchrun"])
    parser.add_argument("--faults", type=lambda text: text.split(","), default=["silent", "loud"])
    parser.add_argument("--every", type=int, default=10, help="torchrun: steps from checkpoint to checkpoint")
    parser.add_argument("--gloo-timeout", type=float, default=10, help="torchrun: seconds; it must outlast a step")
    parser.add_argument("--keep", type=Path, help="a folder for the traces and logs")
    options = parser.parse_args()
    columns = ["usual", *PHASES, "all", "lost", "link", "share"]
    cases = [(how, size, fault) for size in options.sizes for how in options.only for fault in options.faults]
    found = {case: [] for case in cases}
    for _ in range(options.rounds):
        for case in cases:
            found[case].append(once(options, *case))
    print(" | ".join(["job", "MB", "fault", *columns]))
    for (how, size, fault), rounds in found.items():
        print(" | ".join([how, f"{size:g}", fault, *(cell(rounds, column) for column in columns)]))


if __name__ == "__main__":
    main()
