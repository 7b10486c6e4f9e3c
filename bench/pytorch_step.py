"""Time steps and collectives of holdfast.torch beside Gloo, in turns, in the same processes.

    holdfast run --nproc-per-node 2 bench/pytorch_step.py [--width 512] [--rounds 40] [--steps 6]

Prints one line of JSON: medians over all rounds, from rank 0; time that passed, and processor time.
step_ratio is the median of the rounds' ratios, each of steps made within some 0.3 s, so that a
machine whose speed changes does not count; step_ratio_quartiles is their spread, and
cpu_ratio the same of processor time. moved_buckets are those of DDP's that State has had moved to
where all ranks add up.
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


def ratios(
    ours: list[list[tuple[float, float]]], theirs: list[list[tuple[float, float]]], which: int
) -> list[float]:
    """Return the quartiles of the rounds' ratios; of a round, the median steps count."""
    found = [
        statistics.median(t[which] for t in mine) / statistics.median(t[which] for t in other)
        for mine, other in zip(ours, theirs)
    ]
    return [round(q, 3) for q in statistics.quantiles(found, n=4)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(1)
    # As hf.init(), but with a store that Gloo can use as well.
    place = _engine.start(managed=True).seat.place
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

    cases: list[tuple[str, int, Callable[[], None]]] = [
        ("gloo_step", options.steps, lambda: step(plain, plain_optimizer, x)),
        ("holdfast_step", options.steps, ours),
        ("gloo_4KB", 20, lambda: dist.all_reduce(small, group=gloo)),
        ("holdfast_4KB", 20, lambda: dist.all_reduce(small)),
        ("gloo_4MB", 3, lambda: dist.all_reduce(large, group=gloo)),
        ("holdfast_4MB", 3, lambda: dist.all_reduce(large)),
    ]
    found: dict[str, list[list[tuple[float, float]]]] = {name: [] for name, _, _ in cases}
    for turn in range(options.rounds + 1):
        # By turns, so that neither is always the one that comes after the other.
        for name, count, make in cases if turn % 2 else reversed(cases):
            dist.barrier(group=gloo)
            measured = times(count + 1, make)[1:]  # The first finds the other's data in the caches.
            if turn:  # The first turn is to warm up.
                found[name].append(measured)
    if place.rank == 0:
        report: dict[str, object] = {
            name + kind: round(1e6 * statistics.median(t[i] for r in rounds for t in r), 1)
            for i, kind in enumerate(("_us", "_cpu_us"))
            for name, rounds in found.items()
        }
        first, middle, third = ratios(found["holdfast_step"], found["gloo_step"], 0)
        report["step_ratio"], report["step_ratio_quartiles"] = middle, [first, third]
        report["cpu_ratio"] = ratios(found["holdfast_step"], found["gloo_step"], 1)[1]
        report["moved_buckets"] = len(state.engine.buckets.moved)
        report["load"] = round(os.getloadavg()[0], 1)
        report["parameters"] = sum(p.numel() for p in kept.parameters())
        report["peak_MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(json.dumps(report), flush=True)
        os.unlink(store.path)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
