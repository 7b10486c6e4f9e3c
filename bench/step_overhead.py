#!/usr/bin/env python3
"""What a healthy step costs: a plain libtorch loop, ours with protection off and on, and DDP over Gloo.

bench/step_overhead.py --bin build/release/bin --data build/digits [--rounds 5] [--torch PYTHON]

All train 784-512-512-10 with momentum at batch 16, one thread a process. `protection off` (HOLDFAST_PROTECT=0)
leaves out staging and the commit barrier. Rounds are interleaved; the figure of a round is its median step
(plain: of its own clock; ours: between the step lines of rank 0's trace). Prints one table.
"""
import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "chaos"))
from job import Job, free_port  # noqa: E402

STEPS = 300
GLOO = '''
import sys, time, statistics, torch, torch.distributed as dist
torch.set_num_threads(1); dist.init_process_group("gloo"); torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
ddp = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
images, labels, times = torch.rand(1024, 784), torch.randint(0, 10, (1024,)), []
for step in range(int(sys.argv[1])):
    t = time.perf_counter(); i = torch.randint(0, 1024, (16,))
    optimizer.zero_grad(); torch.nn.functional.cross_entropy(ddp(images[i]), labels[i]).backward(); optimizer.step()
    times.append(time.perf_counter() - t)
if dist.get_rank() == 0: print(statistics.median(times[50:]) * 1e3)
'''


def ours(arguments, workers, protect, folder):
    path = Path(tempfile.mkdtemp(dir=folder))
    program = [arguments.bin / "mnist", "--data", arguments.data, "--epochs", 100000, "--steps", STEPS, "--batch", 16,
               "--seed", 3, "--optimizer", "momentum", "--model", "mlp"]
    with Job(arguments.bin, path, program, workers, env={"HOLDFAST_PROTECT": str(int(protect)), "OMP_NUM_THREADS": "1"}) as job:
        if job.wait(300) != 0:
            sys.exit(job.text())
        times = sorted(e["t_ns"] for e in job.trace.events("step") if e["rank"] == 0)
    return statistics.median(b - a for a, b in zip(times[50:], times[51:])) / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch", type=Path, help="a Python with torch; without it Gloo is left out")
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        (folder / "gloo.py").write_text(GLOO)

        def plain():
            return float(subprocess.run([arguments.bin / "bench_plain_loop", str(STEPS)], check=True, capture_output=True,
                                        text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout)

        def gloo(workers):
            return float(subprocess.run([arguments.torch, "-m", "torch.distributed.run", f"--nproc-per-node={workers}",
                                         f"--master-port={free_port()}", folder / "gloo.py", str(STEPS)], check=True,
                                        capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}).stdout)

        cases = {"plain libtorch loop, 1 process": plain}
        for workers in (1, 2):
            for protect in (False, True):
                cases[f"ours, {workers} worker(s), protection {'on' if protect else 'off'}"] = \
                    lambda w=workers, p=protect: ours(arguments, w, p, folder)
        if arguments.torch:
            cases["PyTorch DDP over Gloo, 2 processes"] = lambda: gloo(2)
        times = {name: [] for name in cases}
        for _ in range(arguments.rounds):
            for name, case in cases.items():
                times[name].append(case())
    base = statistics.median(times["plain libtorch loop, 1 process"])
    print(f"{'ms per step':40} {'median':>8} {'min':>8} {'max':>8} {'to plain':>9}")
    for name, values in times.items():
        print(f"{name:40} {statistics.median(values):8.3f} {min(values):8.3f} {max(values):8.3f} {statistics.median(values) / base:9.3f}")


if __name__ == "__main__":
    main()
