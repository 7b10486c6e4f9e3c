"""Time hf.Embedding beside nn.Embedding in process and a table behind torch RPC, in turns.

    holdfast run --nproc-per-node 1 --servers 1 bench/tables.py [--rows 10000000] [--dim 16] [--keys 106496]

Each makes the same steps: rows of a batch of Zipf's keys (exponent 1, different ones in each round), a gradient for each,
and an update of the touched rows by Adagrad. RPC's server is one more process. It and the worker use one thread each for
torch. Prints one line of JSON: medians over all rounds, in milliseconds, and how many keys a batch has without repeats.
nn.Embedding has no process between, so it is the ceiling.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed import rpc

TABLE: dict[str, Tensor] = {}  # In RPC's server.
EPS = 1e-10


def free_port() -> int:
    """Return a port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def join_rpc(name: str, rank: int, port: int) -> None:
    """Join the two processes of RPC."""
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{port}")
    rpc.init_rpc(name, rank=rank, world_size=2, rpc_backend_options=options)


def serve(port: int, rows: int, dim: int) -> None:
    """Keep a table for RPC, until the other process has done."""
    torch.set_num_threads(1)
    TABLE["rows"] = torch.randn(rows, dim)
    TABLE["sums"] = torch.zeros(rows, dim)
    join_rpc("server", 1, port)
    rpc.shutdown()


def rows_of(keys: Tensor) -> Tensor:
    """Return rows. Called in RPC's server."""
    return TABLE["rows"][keys]


def update(keys: Tensor, gradients: Tensor) -> None:
    """Update rows by Adagrad. Called in RPC's server. The keys differ."""
    sums = TABLE["sums"].index_select(0, keys) + gradients * gradients
    TABLE["sums"][keys] = sums
    TABLE["rows"].index_add_(0, keys, gradients / (sums.sqrt() + EPS), alpha=-0.01)


def step_of_rpc(keys: Tensor) -> tuple[float, float]:
    """Make a step with RPC; return the seconds of its two halves."""
    begun = time.perf_counter()
    unique, places = torch.unique(keys, return_inverse=True)
    rows = rpc.rpc_sync("server", rows_of, (unique,)).requires_grad_()
    out = torch.nn.functional.embedding(places, rows)
    pulled = time.perf_counter()
    out.sum().backward()  # type: ignore[no-untyped-call]
    rpc.rpc_sync("server", update, (unique, rows.grad))
    return pulled - begun, time.perf_counter() - pulled


def steps_here(rows: int, dim: int) -> Callable[[Tensor], tuple[float, float]]:
    """Return how to make a step with nn.Embedding."""
    table = torch.nn.Embedding(rows, dim, sparse=True)
    optimizer = torch.optim.Adagrad(table.parameters(), lr=0.01)

    def step(keys: Tensor) -> tuple[float, float]:
        begun = time.perf_counter()
        out = table(keys)
        pulled = time.perf_counter()
        optimizer.zero_grad()
        out.sum().backward()
        optimizer.step()
        return pulled - begun, time.perf_counter() - pulled

    return step


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, usual in (("rows", 10_000_000), ("dim", 16), ("keys", 4096 * 26), ("rounds", 15), ("serve", 0)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.rows, options.dim)
    import holdfast.torch as hf

    torch.set_num_threads(1)
    port = free_port()
    words = ["--serve", str(port), "--rows", str(options.rows), "--dim", str(options.dim)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MS_", "HOLDFAST_"))}
    server = subprocess.Popen([sys.executable, __file__, *words], env=plain)
    join_rpc("worker", 0, port)
    hf.init()
    table = hf.Embedding(options.rows, options.dim, optimizer="adagrad")
    state = hf.State(torch.nn.ModuleList([table]))
    here = steps_here(options.rows, options.dim)
    found: dict[str, list[tuple[float, float]]] = {"holdfast": [], "rpc": [], "in_process": []}
    unique = []
    draw = torch.Generator().manual_seed(1)
    for _ in range(options.rounds):
        u = torch.rand(options.keys, generator=draw, dtype=torch.float64)
        keys = ((options.rows + 1) ** u - 1).long().clamp_(max=options.rows - 1)
        unique.append(int(torch.unique(keys).numel()))
        begun = time.perf_counter()
        with state.step():
            entered = time.perf_counter()
            out = table(keys)
            pulled = time.perf_counter()
            out.sum().backward()
        # What State does before the body is the step's, too.
        found["holdfast"].append((entered - begun + pulled - entered, time.perf_counter() - pulled))
        found["rpc"].append(step_of_rpc(keys))
        found["in_process"].append(here(keys))
    result: dict[str, Any] = {"rows": options.rows, "dim": options.dim, "keys": options.keys}
    result["unique"] = round(statistics.median(unique))
    for name, times in found.items():
        result[name] = {
            "pull_ms": round(1e3 * statistics.median(first for first, _ in times), 1),
            "push_ms": round(1e3 * statistics.median(second for _, second in times), 1),
        }
    print(json.dumps(result), flush=True)
    rpc.shutdown()
    server.wait()


if __name__ == "__main__":
    main()
