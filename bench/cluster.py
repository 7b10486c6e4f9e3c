#!/usr/bin/env python3
"""A job's cluster at scale, beside c10d's TCPStore and plain loopback, in one run.

bench/cluster.py --bin build/release/bin [--sizes 1000,10000] [--hosts 1,100,1250] [--torch PYTHON]

For each size, on each number of hosts: bench_cluster in the clear, the same under TLS (`holdfast tls new` makes the certificates), as many
clients of a TCPStore that each set a key of their own and then read their neighbour's (a client's own cost is in it:
compare the orders, not the digits), and as many bare connections that send 36 bytes and read 32, one after the other:
what the kernel and Python's loop take for that. The store asks the resolver for the name of each client. Root keeps it
from the DNS (a mount namespace with `hosts: files`); for others the output says that the resolver's time is in it. The
store and the bare connections need two descriptors for each client in one process: there are as many as `ulimit -Hn` lets be.
"""
import argparse
import os
import resource
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

SPARE_DESCRIPTORS = 256  # For everything else that a process has open.
STORE = """
import datetime, os, sys, time, threading
from torch.distributed import TCPStore
n, ways = int(sys.argv[1]), 8
server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
clients = [None] * n
def part(way):
    for i in range(way, n, ways):
        clients[i] = TCPStore("127.0.0.1", server.port, is_master=False, wait_for_workers=False)
        clients[i].set(str(i), "x")
def read(way):
    for i in range(way, n, ways):
        clients[i].get(str((i + 1) % n))
for what, work in (("all connected, own key set", part), ("neighbour's key read by all", read)):
    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(way,)) for way in range(ways)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(f"TCPStore: {what:48} {1000 * (time.perf_counter() - begin):10.1f} ms", flush=True)
os._exit(0)
"""


def under_tls(binaries, folder):
    """Makes certificates; returns the environment and the config.json for them."""
    subprocess.run([binaries / "holdfast", "tls", "new", folder / "tls", "--hosts", "127.0.0.1"], check=True,
                   stdout=subprocess.DEVNULL)
    passwords = {f"HOLDFAST_TLS_{role.upper()}_PASSWORD_FILE": str(folder / "tls" / f"{role}.password")
                 for role in ("server", "client")}
    return {**os.environ, **passwords}, folder / "tls" / "config.json"


def without_dns(folder):
    """Words to put before a command so that it looks names up in files alone; empty if that is not possible."""
    names = folder / "nsswitch.conf"
    names.write_text("hosts: files\n")
    words = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/nsswitch.conf && exec "$@"', names]
    try:
        can = subprocess.run([*words, "true"], check=False, stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        can = False
    return words if can else []


def store(torch, size, before):
    if not before:
        print("TCPStore: the store asks the DNS for each client's name, so its figures depend on the resolver; root can keep it from that",
              flush=True)
    return subprocess.run([*before, torch, "-c", STORE, str(size)], check=False).returncode


def loopback(size):
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as server:
        def serve():
            kept = []
            for _ in range(size):
                kept.append(server.accept()[0])
                kept[-1].recv(36)
                kept[-1].send(b"w" * 32)
        thread = threading.Thread(target=serve)
        begin = time.perf_counter()
        thread.start()
        kept = []
        for _ in range(size):
            kept.append(socket.create_connection(server.getsockname()))
            kept[-1].send(b"h" * 36)
            kept[-1].recv(32)
        thread.join()
        print(f"{'loopback: a connection, 36 bytes there and 32 back, each':58} "
              f"{1000 * (time.perf_counter() - begin):10.1f} ms", flush=True)
        for connection in kept:
            connection.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--sizes", default="1000,10000")
    parser.add_argument("--hosts", default="1,100,1250")
    parser.add_argument("--torch", type=Path)
    arguments = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        environment, config = under_tls(arguments.bin.resolve(), Path(folder))
        before = without_dns(Path(folder))
        for size in (int(text) for text in arguments.sizes.split(",")):
            print(f"\nload {os.getloadavg()[0]:.1f}")
            bench = arguments.bin / "bench_cluster"
            failed = 0
            for hosts in (text for text in arguments.hosts.split(",") if int(text) <= size):
                failed |= subprocess.run([bench, str(size), hosts], check=False).returncode
                failed |= subprocess.run([bench, str(size), hosts, config], check=False, env=environment).returncode
            clients = min(size, (most - SPARE_DESCRIPTORS) // 2)
            if clients < size:
                print(f"the next are of {clients} clients: `ulimit -Hn` is {most}", flush=True)
            if arguments.torch:
                failed |= store(arguments.torch, clients, before)
            loopback(clients)
            if failed:
                sys.exit(f"cluster.py: a part of {size} processes failed")


if __name__ == "__main__":
    main()
