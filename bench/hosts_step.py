#!/usr/bin/env python3
"""What a step costs over two hosts: with private state at its holder and without; DDP also over Gloo.

hosts_step.py --build build/release --python PYTHON   PYTHON has torch. The hosts are namespaces of this machine
(docs/testing-hosts.md), one rank on each. Medians of rank 0 over the steps, then over rounds in turn, in milliseconds.
"""
import argparse
import statistics
import tempfile
from pathlib import Path

from hosts_sums import fleet_of, with_torch

ROUNDS = 3
PROGRAM = """
import json, statistics, sys, time
import torch, torch.distributed as dist
kind, width, backend = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.manual_seed(1)
def layers():
    return torch.nn.Sequential(*[m for _ in range(4) for m in (torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.ReLU())])
data = [torch.randn(8, width) for _ in range(24)]
if backend == "holdfast":
    import holdfast.torch as hf
    hf.init()
else:
    dist.init_process_group("gloo")
model = layers()
if kind == "fsdp":
    from torch.distributed.fsdp import fully_shard
    fully_shard(model)
else:
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
def step(x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
at = []
if backend == "holdfast":
    state = hf.State(model, optimizer)
    for x in state.steps(data, epochs=1):
        at.append(time.perf_counter())
        step(x)
else:
    for x in data:
        at.append(time.perf_counter())
        step(x)
times = [(b - a) * 1e3 for a, b in zip(at[3:], at[4:])]
if dist.get_rank() == 0:
    print("found " + json.dumps({"ms": statistics.median(times)}), flush=True)
dist.barrier()
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--width", type=int, default=1024, help="of 4 layers; 1024: 4.2 million parameters")
    arguments = parser.parse_args()
    arguments.build, arguments.hosts = arguments.build.resolve(), 2
    ways = {(kind, f"replicas {replicas}"): ("holdfast", {"HOLDFAST_REPLICAS": str(replicas)}) for kind in ("ddp", "fsdp") for replicas in (0, 1)}
    ways["ddp", "Gloo"] = ("gloo", {})
    found = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, fleet_of(2, arguments.build) as fleet:
        for _ in range(ROUNDS):
            for way, (backend, env) in ways.items():
                result = with_torch(arguments, fleet, Path(name), backend, PROGRAM, (way[0], str(arguments.width)), env)
                found[way].append(result["ms"])
    for (kind, how), times in found.items():
        print(f"{kind:>5} {how:>11}: {statistics.median(times):8.1f} ms   ({', '.join(f'{ms:.1f}' for ms in sorted(times))})")


if __name__ == "__main__":
    main()
