#!/usr/bin/env python3
"""SIGKILL of a worker → all ranks have completed a new step; beside it torchrun on the same model.

bench/kill_to_step.py --bin build/release/bin --data build/digits [--rounds 9] [--torch PYTHON]

Ours: mnist (784-512-512-10, momentum, 4 workers) with a spare and without, from the traces; beside it the
program's own start-up (exec → first step of a fresh job's worker) and one step. torchrun: the same model in
DDP over Gloo with a checkpoint at every step, `--max-restarts`; steps lost are counted too. Prints one table.
"""
import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "chaos"))
from job import Job, free_port, kill  # noqa: E402

WORKERS = 4
SCRIPT = '''
import json, os, sys, time
import torch, torch.distributed as dist
torch.set_num_threads(1)
folder, steps = sys.argv[1], int(sys.argv[2])
rank = int(os.environ["RANK"])
log = open(f"{folder}/rank-{rank}-{os.getpid()}.jsonl", "a", buffering=1)
def say(event, **kw): log.write(json.dumps(dict(event=event, t_ns=time.clock_gettime_ns(time.CLOCK_MONOTONIC), pid=os.getpid(), rank=rank, **kw)) + "\\n")
say("start")
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
first, path = 0, f"{folder}/checkpoint.pt"
if os.path.exists(path):
    c = torch.load(path); net.load_state_dict(c["net"]); optimizer.load_state_dict(c["optimizer"]); first = c["step"]
ddp = torch.nn.parallel.DistributedDataParallel(net)
for step in range(first + 1, steps + 1):
    g = torch.Generator().manual_seed(step * 97 + rank)
    x, y = torch.rand(16, 784, generator=g), torch.randint(0, 10, (16,), generator=g)
    optimizer.zero_grad(); torch.nn.functional.cross_entropy(ddp(x), y).backward(); optimizer.step()
    say("step", step=step)
    if rank == 0:
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, path + ".t"); os.rename(path + ".t", path)
dist.destroy_process_group()
'''


def table_row(name, values, note=""):
    values = sorted(values)
    print(f"{name:44} {statistics.median(values):9.1f} {values[0]:9.1f} {values[-1]:9.1f}  {len(values):3}  {note}", flush=True)


def ours(arguments, spares, rounds, folder):
    """Several kills in one job; a kill waits until the former spare was replaced (all have stepped for a while)."""
    times, startups, steps, known = [], [], [], []
    path = folder / f"ours-{spares}"
    path.mkdir()
    program = [arguments.bin / "mnist", "--data", arguments.data, "--epochs", 100000, "--steps", 1000000, "--batch", 16,
               "--seed", 3, "--optimizer", "momentum", "--model", "mlp"]
    with Job(arguments.bin, path, program, WORKERS, spares, max_restarts=100) as job:
        began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        job.until(lambda t: t.newest_step() >= 20, what="the first steps")
        startups.append((min(e["t_ns"] for e in job.trace.events("step")) - began) / 1e6)
        for _ in range(rounds):
            time.sleep(3.0)  # A spare that replaces the used one has to be ready: that is the case measured.
            job.trace.poll()
            rank = random.randrange(WORKERS)
            victim = job.trace.pid_of(rank)
            at = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            kill(victim)

            def firsts(trace):
                resumed = [e for e in trace.events("resume") if e["t_ns"] > at]
                if not resumed:
                    return None
                generation = max(e["generation"] for e in resumed)
                found = {}
                for e in trace.events("step"):
                    if e["generation"] == generation and e["t_ns"] > at:
                        found.setdefault(e["rank"], e["t_ns"])
                return found if len(found) == WORKERS else None

            if not job.until(lambda t: firsts(t) is not None, what="a step of all ranks after the kill"):
                sys.exit(f"the job ended:\n{job.text()}")
            times.append((max(firsts(job.trace).values()) - at) / 1e6)
            fault = [e for e in job.trace.events("fault") if e["t_ns"] > at]
            if fault:
                known.append((fault[0]["t_ns"] - at) / 1e6)
        mine = sorted(e["t_ns"] for e in job.trace.events("step") if e["rank"] == 0)
        steps += [(b - a) / 1e6 for a, b in zip(mine, mine[1:])]
        job.process.send_signal(signal.SIGTERM)
        job.wait()
    return times, startups, steps, known


def torchrun(arguments, rounds, folder):
    times, lost = [], []
    (folder / "script.py").write_text(SCRIPT)
    for number in range(rounds):
        path = folder / f"torchrun-{number}"
        path.mkdir()
        command = [str(arguments.torch), "-m", "torch.distributed.run", f"--nproc-per-node={WORKERS}", "--max-restarts=5",
                   "--monitor-interval=0.1", f"--master-port={free_port()}", str(folder / "script.py"), str(path), "100000"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
        try:
            def events():
                return [json.loads(x) for p in path.glob("*.jsonl") for x in p.read_text().splitlines() if x.endswith("}")]
            end = time.monotonic() + 120
            while max((e.get("step", 0) for e in events()), default=0) < 20 and time.monotonic() < end:
                time.sleep(0.05)
            before = events()
            victim = random.choice(sorted({e["pid"] for e in before}))
            at = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            kill(victim)
            old = {e["pid"] for e in before}
            while time.monotonic() < end:
                new = [e for e in events() if e["event"] == "step" and e["pid"] not in old]
                first = {}
                for e in sorted(new, key=lambda e: e["t_ns"]):
                    first.setdefault(e["rank"], e)
                if len(first) == WORKERS:
                    times.append((max(e["t_ns"] for e in first.values()) - at) / 1e6)
                    made = max(e.get("step", 0) for e in events() if e["t_ns"] < min(x["t_ns"] for x in first.values()))
                    lost.append(made + 1 - min(e["step"] for e in first.values()))
                    break
                time.sleep(0.02)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return times, lost


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--torch", type=Path, help="a Python with torch; without it torchrun is left out")
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    print(f"{'milliseconds':44} {'median':>9} {'min':>9} {'max':>9}    n")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        with_spare, startups, steps, known = ours(arguments, 1, arguments.rounds, folder)
        table_row("kill → all ranks stepped, with a spare", with_spare)
        table_row("  kill → known to the scheduler", known)
        table_row("  one step (healthy)", steps)
        without, startups, _, _ = ours(arguments, 0, arguments.rounds, folder)
        table_row("kill → all ranks stepped, no spare", without)
        table_row("  the program's own start (msrun → first step)", startups)
        if arguments.torch:
            times, lost = torchrun(arguments, min(5, arguments.rounds), folder)
            table_row("torchrun: kill → all ranks stepped", times, f"steps lost: {lost} (checkpoint at every step)")


if __name__ == "__main__":
    main()
