"""Time steps and collectives of holdfast.torch beside Gloo, in turns, in the same processes.

    holdfast run --nproc-per-node 2 bench/pytorch_step.py [--width 512] [--rounds 10] [--steps 20]

Prints one line of JSON: medians over all rounds, from rank 0; time that passed, and processor time.
"""

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import holdfast

job = holdfast.init()  # The scheduler stays in here, without torch.

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import holdfast.torch as hf  # noqa: E402
from holdfast.torch import _engine  # noqa: E402


def network(width: int) -> nn.Module:
    """Return three layers."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
    """Make a step as users do."""
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def times(count: int, make: Callable[[], None]) -> list[tuple[float, float]]:
    """Return the seconds of each call, and those of the processor."""
    found = []
    for _ in range(count):
        begun, used = time.perf_counter(), time.process_time()
        make()
        found.append((time.perf_counter() - begun, time.process_time() - used))
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # As hf.init(), but with a store that Gloo can use as well.
    place = _engine.start(managed=True).place
    store = dist.FileStore(
        str(Path(tempfile.gettempdir()) / f"holdfast-bench-{place.run_id}"), place.world_size
    )
    dist.init_process_group("holdfast", store=store, rank=place.rank, world_size=place.world_size)
    gloo = dist.new_group(backend="gloo")

    plain = DistributedDataParallel(network(options.width), process_group=gloo)
    plain_optimizer = torch.optim.AdamW(plain.parameters())
    kept = DistributedDataParallel(network(options.width))
    kept_optimizer = torch.optim.AdamW(kept.parameters())
    state = hf.State(kept, kept_optimizer)
    x = torch.randn(64, 784)
    small, large = torch.ones(1024), torch.ones(1 << 20)

    def ours() -> None:
        with state.step():
            step(kept, kept_optimizer, x)

    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(options.rounds + 1):
        dist.barrier(group=gloo)
        measured = {
            "gloo_step": times(options.steps, lambda: step(plain, plain_optimizer, x)),
            "holdfast_step": times(options.steps, ours),
            "gloo_4KB": times(50, lambda: dist.all_reduce(small, group=gloo)),
            "holdfast_4KB": times(50, lambda: dist.all_reduce(small)),
            "gloo_4MB": times(5, lambda: dist.all_reduce(large, group=gloo)),
            "holdfast_4MB": times(5, lambda: dist.all_reduce(large)),
        }
        if turn:  # The first is to warm up.
            for name, values in measured.items():
                found.setdefault(name, []).extend(values)
    if place.rank == 0:
        report = {
            name + kind: round(1e6 * statistics.median(t[i] for t in values), 1)
            for i, kind in enumerate(("_us", "_cpu_us"))
            for name, values in found.items()
        }
        report["step_ratio"] = round(report["holdfast_step_us"] / report["gloo_step_us"], 3)
        report["parameters"] = sum(p.numel() for p in kept.parameters())
        report["peak_MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps(report), flush=True)
        os.unlink(store.path)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
