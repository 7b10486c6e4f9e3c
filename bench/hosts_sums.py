#!/usr/bin/env python3
"""Sums over several hosts, by Holdfast and by Gloo over the same links, and raw sockets beside them.

hosts_sums.py --build build/release --python PYTHON [--hosts 2]   PYTHON has torch. The hosts are namespaces of this
machine (docs/testing-hosts.md), one rank on each. Medians of rank 0, in microseconds; Holdfast, Gloo and Holdfast under
TLS in turn, and the same bytes along the hosts and back over bare sockets. All hosts share this machine's cores.
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
LIMIT_S = 300  # Only a hang takes so long.
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
# The bytes of a sum along a chain of hosts, and nothing else: to the last host and back, in pieces, both ways at once.
RAW = """
import socket, statistics, sys, threading, time
rank, hosts, size, behind = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
PIECE, TIMES = 256 << 10, max(10, min(500, (64 << 20) // size)) + 5
def tuned(peer):
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return peer
def receive(peer, view):
    at = 0
    while at < len(view):
        at += peer.recv_into(view[at:])
def pieces(memory):
    view = memoryview(memory)
    return [view[at:at + PIECE] for at in range(0, size, PIECE)]
def pass_on(source, sink, memory):
    for _ in range(TIMES):
        for piece in pieces(memory):
            receive(source, piece); sink.sendall(piece)
server = socket.create_server(("", 7100)) if rank else None
after = before = None
if rank + 1 < hosts:
    for _ in range(100):
        try: after = tuned(socket.create_connection((behind, 7100))); break
        except OSError: time.sleep(0.05)
if server: before = tuned(server.accept()[0])
memories = bytearray(size), bytearray(size)
if rank + 1 == hosts:
    pass_on(before, before, memories[0])
elif rank:
    back = threading.Thread(target=pass_on, args=(after, before, memories[1])); back.start()
    pass_on(before, after, memories[0]); back.join()
else:
    times = []
    def send():
        for piece in pieces(memories[0]): after.sendall(piece)
    for _ in range(TIMES):
        begun = time.perf_counter()
        if size > PIECE:
            sender = threading.Thread(target=send); sender.start()
        else:
            sender = None; send()
        for piece in pieces(memories[1]): receive(after, piece)
        if sender: sender.join()
        times.append((time.perf_counter() - begun) * 1e6)
    print(statistics.median(times[5:]))
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
    """Microseconds of the bytes of a sum over bare sockets, which a sum takes at least."""
    program = folder / "raw.py"
    program.write_text(RAW)
    running = []
    for rank in reversed(range(arguments.hosts)):
        behind = fleet.address(rank + 1) if rank + 1 < arguments.hosts else "none"
        command = [arguments.python, program, str(rank), str(arguments.hosts), str(size), behind]
        running.append(fleet.popen(rank, command, stdout=subprocess.PIPE, text=True))
    said = [process.communicate(timeout=LIMIT_S)[0] for process in running]
    return float(said[-1])


def under_tls(arguments, fleet, folder):
    """Makes certificates; returns the variables of a job under TLS."""
    papers = folder / "tls"
    subprocess.run([arguments.build / "bin/holdfast", "tls", "new", papers, "--hosts", fleet.address(0)], check=True, capture_output=True)
    return {"HOLDFAST_TLS_CONFIG": str(papers / "config.json"), "HOLDFAST_TLS_CLIENT_PASSWORD_FILE": str(papers / "client.password"),
            "HOLDFAST_TLS_SERVER_PASSWORD_FILE": str(papers / "server.password")}


def cipher_rate():
    """Bytes that one core encrypts or decrypts in a second, in records of TLS's size."""
    told = subprocess.run(["openssl", "speed", "-mr", "-evp", "aes-256-gcm", "-bytes", "16384", "-seconds", "1"], capture_output=True, text=True, check=True).stdout
    return float(told.strip().splitlines()[-1].split(":")[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--hosts", type=int, default=2)
    arguments = parser.parse_args()
    arguments.build = arguments.build.resolve()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, fleet_of(arguments.hosts, arguments.build) as fleet:
        folder = Path(name)
        tls = under_tls(arguments, fleet, folder)
        rounds = {"holdfast": [], "gloo": [], "tls": []}
        limits = []
        for _ in range(ROUNDS):
            for kind, found in rounds.items():
                backend, more = ("gloo", {}) if kind == "gloo" else ("holdfast", tls if kind == "tls" else {})
                found.append(with_torch(arguments, fleet, folder, backend, more_env=more))
            limits.append({name: raw(arguments, fleet, folder, size) for name, size in SIZES.items()})
        rate = cipher_rate()
        print(f"medians of {ROUNDS} rounds, microseconds; one core encrypts {rate / 1e9:.2f} GB/s (AES-256-GCM, 16 KB)")
        for name, size in SIZES.items():
            ours, theirs, secret = (statistics.median(found[name] for found in rounds[kind]) for kind in rounds)
            limit = statistics.median(found[name] for found in limits)
            ciphers = 2 * 2 * (arguments.hosts - 1) * size / rate / min(arguments.hosts, os.cpu_count()) * 1e6
            print(f"{name:>6}: Holdfast {ours:7.0f}   Gloo {theirs:7.0f} ({theirs / ours:4.2f} x)   raw sockets {limit:7.0f} ({limit / ours:4.0%})   "
                  f"TLS {secret:7.0f}, raw and ciphers {limit + ciphers:7.0f} ({(limit + ciphers) / secret:4.0%})")


if __name__ == "__main__":
    main()
