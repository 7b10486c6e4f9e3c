"""Start PyTorch jobs with parameter servers whose programs kill processes of their own job."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_job import Job

# The beginning of a program. A kill is [step, place, victims]: the rank `killer` that comes to the
# place in that step, once, kills them and then, if it is among them, itself.
BEGINNING = """
import hashlib, json, os, signal, sys, time
import torch, torch.distributed as dist, holdfast.torch as hf
from torch.nn.parallel import DistributedDataParallel as DDP
config, folder = json.loads(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
hf.init()
rank = dist.get_rank()
torch.manual_seed(1)
state = None


def processes_of(role):
    mine = b"MS_SCHED_PORT=" + os.environb[b"MS_SCHED_PORT"]
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = open(f"/proc/{name}/environ", "rb").read().split(b"\\0")
        except OSError:
            continue
        if mine in words and b"MS_ROLE=" + role in words:
            found.append(int(name))
    return sorted(found)


def at(place):
    now = state.n if state else 0
    for step, where, victims in config.get("kills", []):
        if (step, where) != (now, place) or rank != config.get("killer", 0):
            continue
        try:
            open(f"{folder}/killed-{step}-{where}", "x").close()
        except FileExistsError:
            continue
        if "scheduler" in victims:
            os.kill(processes_of(b"MS_SCHED")[0], signal.SIGKILL)
        servers = processes_of(b"MS_PSERVER")
        for server in servers if "servers" in victims else servers[:victims.count("server")]:
            os.kill(server, signal.SIGKILL)
        for worker in processes_of(b"MS_WORKER") if "workers" in victims else ():
            if worker != os.getpid():
                os.kill(worker, signal.SIGKILL)
        if "worker" in victims or "workers" in victims:
            os.kill(os.getpid(), signal.SIGKILL)


def note_place():
    with open(f"{folder}/pid-{rank}.new", "w") as file:
        file.write(f"{os.getpid()} {state.n}")
    os.replace(f"{folder}/pid-{rank}.new", f"{folder}/pid-{rank}")
    time.sleep(config.get("wait", 0))

"""
Results = dict[int, dict[str, Any]]
Kills = Sequence[tuple[int, str, list[str]]]


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def start(folder: Path, text: str, config: Any, servers: int, *more: str, **options: Any) -> Job:
    """Start a job with parameter servers."""
    program = folder.with_suffix(".py")
    program.write_text(text)
    words = ("--servers", str(servers), *more)
    return Job(folder, config, program=program, options=words, **options)


def trained(
    text: str,
    folder: Path,
    servers: int,
    kills: Kills = (),
    killer: int = 0,
    more: Any = None,
    **options: Any,
) -> Results:
    """Train with servers and kills; return what the ranks leave."""
    config = {"kills": kills, "killer": killer, **(more or {})}
    job = start(folder, text, config, servers, **options)
    try:
        results = job.end()
        assert len(list(folder.glob("killed-*"))) == len(kills), job.logs()
        assert sorted(results) == list(range(job.ranks))
    finally:
        job.stop()
    return results
