#!/usr/bin/env python3
"""Sums over several hosts, by Holdfast and by Gloo over the same links, and raw sockets beside them.

hosts_sums.py --build build/release --python PYTHON [--hosts 2]   PYTHON has torch. The hosts are namespaces of this
machine (docs/testing-hosts.md), one rank on each. Medians of rank 0, in microseconds; Holdfast and Gloo in turn.
"""
import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from common import fleet_of  # noqa: E402

SIZES = {"4 KB": 4 << 10, "1 MB": 1 << 20, "25 MB": 25 << 20}
ROUNDS = 3
LIMIT_S = 300  # Reached by a hang alone.
PROGRAM = """
import json, os, statistics, sys, time
import torch, torch.distributed as dist
sizes, backend = json.loads(sys.argv[1]), sys.argv[2]
found = {}
def measure():
    for name, size in sizes.items():
        numbers = torch.ones(size // 4)
        times = []
        for i in range(max(10, min(500, (64 << 20) // size)) + 5):
            dist.barrier()
            before = time.perf_counter()
            dist.all_reduce(numbers)
            times.append((time.perf_counter() - before) * 1e6)
            numbers.fill_(1)
        found[name] = statistics.median(times[5:])
if backend == "holdfast":  # In a step: what comes before the first is kept for successors, which takes longer.
    import holdfast.torch as hf
    hf.init()
    model = torch.nn.Linear(1, 1)
    state = hf.State(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in state.steps([torch.ones(1, 1)], epochs=1):
        measure()
else:
    dist.init_process_group("gloo")
    measure()
if dist.get_rank() == 0:
    print("found " + json.dumps(found), flush=True)
dist.barrier()
"""
RAW = """
import socket, sys, time, statistics
host, size = sys.argv[1], int(sys.argv[2])
def receive(peer, view):
    at = 0
    while at < len(view):
        at += peer.recv_into(view[at:])
data, into = bytearray(size), memoryview(bytearray(size))
if host == "serve":
    server = socket.create_server(("", 7100))
    peer = server.accept()[0]
else:
    for _ in range(100):
        try: peer = socket.create_connection((host, 7100)); break
        except OSError: time.sleep(0.05)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for i in range(max(10, min(500, (64 << 20) // size)) + 5):
    before = time.perf_counter()
    if host == "serve":
        receive(peer, into); peer.sendall(data)
    else:
        peer.sendall(data); receive(peer, into)
        times.append((time.perf_counter() - before) * 1e6)
if times: print(statistics.median(times[5:]))
"""


def with_torch(arguments, fleet, folder, backend, text=PROGRAM, words=(json.dumps(SIZES),), more_env=()):
    """Run a program on all hosts, one rank on each, with these words and the backend's; return what rank 0 has found."""
    program = folder / "program.py"
    program.write_text(text)
    token = folder / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    environment = {**os.environ, "PYTHONPATH": str(arguments.build / "python"), "HOLDFAST_TOKEN_FILE": str(token), "OMP_NUM_THREADS": "1", **dict(more_env)}
    running = []
    for rank in range(arguments.hosts):
        what = [program, *words, backend]
        if backend == "holdfast":
            command = [arguments.python, "-m", "holdfast", "run", f"--nnodes={arguments.hosts}", f"--node-rank={rank}", "--nproc-per-node=1",
                       f"--rdzv-endpoint={fleet.address(0)}:{29400}", f"--log-dir={folder}/log-{secrets.token_hex(4)}", *what]
            more = {}
        else:
            command = [arguments.python, *what]
            more = {"RANK": str(rank), "WORLD_SIZE": str(arguments.hosts), "MASTER_ADDR": fleet.address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "eth0"}
        running.append(fleet.popen(rank, [str(word) for word in command], env={**environment, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder))
    said = [process.communicate(timeout=LIMIT_S)[0] for process in running]
    for line in said[0].splitlines():
        if "found " in line:
            return json.loads(line[line.index("found ") + 6:])
    raise SystemExit(f"{backend} has found nothing:\n{said}")


def raw(arguments, fleet, folder, size):
    """There and back, of so many bytes: a sum takes at least as long."""
    program = folder / "raw.py"
    program.write_text(RAW)
    server = fleet.popen(1, [arguments.python, program, "serve", str(size)])
    told = fleet.run(0, [arguments.python, program, fleet.address(1), str(size)], capture_output=True, text=True, timeout=LIMIT_S)
    server.wait(LIMIT_S)
    return float(told.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--hosts", type=int, default=2)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, fleet_of(arguments.hosts, arguments.build) as fleet:
        folder = Path(name)
        rounds = {"holdfast": [], "gloo": []}
        for _ in range(ROUNDS):
            for backend, found in rounds.items():
                found.append(with_torch(arguments, fleet, folder, backend))
        for name, size in SIZES.items():
            ours, theirs = (statistics.median(found[name] for found in rounds[backend]) for backend in rounds)
            print(f"{name:>6}: Holdfast {ours:9.0f} us   Gloo {theirs:9.0f} us   ratio {theirs / ours:5.2f}   raw sockets {raw(arguments, fleet, folder, size):9.0f} us")


if __name__ == "__main__":
    main()
