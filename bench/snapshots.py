#!/usr/bin/env python3
"""What snapshots cost a PyTorch job, and how fast it begins again, beside torch.save and torch.distributed.checkpoint.

bench/snapshots.py --package build/release/python --python PYTHON [--megabytes 1000] [--seconds 100] [--period 8] [--rounds 3]

A job of one process has a model and Adam's moments of so many megabytes in all. Rounds of `seconds` with a snapshot
every `period` seconds, and without, take turns. `cost` is by how much the nine steps around a snapshot are longer than the mean
of all others; `stall` the same of the longest of them. The first snapshot is told apart: it takes its memory. `writing` is the time from the
first byte of the part to the manifest, beside which the disk's own
is the time of as many bytes with O_DIRECT and fsync, while nothing else runs.
`resume` is the time from the command to the end of the first step; `torch.load` that of a plain program which loads its file,
by torchrun and by itself. Before each the page cache is dropped (needs root). A virtual machine's host may have taken back free
memory, and gives it again at some seconds a GB: so another process holds `--held` megabytes until the command has begun.
"""
import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDTH = 2048
HOLDER = """
import mmap, sys, time
held = mmap.mmap(-1, int(sys.argv[1]) << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
held.madvise(mmap.MADV_HUGEPAGE)
for at in range(0, len(held), 4096): held[at] = 1
print("held", flush=True)
sys.stdin.read()
time.sleep(1)
"""


def model_and_optimizer(megabytes):
    import torch
    torch.manual_seed(0)
    layers = max(1, round(megabytes * 1e6 / 12 / (WIDTH * WIDTH)))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    return model, torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)


def one_step(model, optimizer, x):
    optimizer.zero_grad(set_to_none=False)
    model(x).square().mean().backward()
    optimizer.step()


def job_program(options):
    """In the job: steps until the time is over. Prints when each has ended."""
    import holdfast.torch as hf
    hf.init()
    import torch
    model, optimizer = model_and_optimizer(options.megabytes)
    state = hf.State(model, optimizer)
    x = torch.randn(8, WIDTH)
    times = []
    while not times or times[-1] - times[0] < options.seconds:
        with state.step():
            one_step(model, optimizer, x)
        times.append(time.time())
    print("times", json.dumps(times), flush=True)


def plain_program(options):
    """Not in a job: what the means that people have cost. With --load, only until the first step."""
    import torch
    model, optimizer = model_and_optimizer(options.megabytes)
    x = torch.randn(8, WIDTH)
    file = options.folder / "plain.pt"
    if options.load:
        found = torch.load(file, weights_only=True)
        model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        one_step(model, optimizer, x)
        print("times", json.dumps([time.time()]), flush=True)
        return
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def steps(count):
        found = []
        for _ in range(count):
            begun = time.perf_counter()
            one_step(model, optimizer, x)
            found.append(time.perf_counter() - begun)
        return found

    median = statistics.median(steps(12)[2:])
    report = {"step_ms": 1000 * median, "torch_save_ms": [], "dcp_async_call_ms": [], "dcp_async_slower_ms": []}
    for turn in range(options.rounds):
        begun = time.perf_counter()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        with open(file, "rb+") as written:
            os.fsync(written.fileno())
        report["torch_save_ms"].append(1000 * (time.perf_counter() - begun))
        steps(4)
        begun = time.perf_counter()
        saving = dcp.async_save({"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                                checkpoint_id=str(options.folder / f"dcp-{turn}"))
        call = time.perf_counter() - begun
        beside = []
        while not saving.done():
            beside += steps(1)
        saving.result()
        report["dcp_async_call_ms"].append(1000 * call)
        report["dcp_async_slower_ms"].append(1000 * (call + sum(beside) - len(beside) * median))
        shutil.rmtree(options.folder / f"dcp-{turn}")
        steps(4)
    print("report", json.dumps(report), flush=True)


def said(text, word):
    return json.loads(next(line for line in text.splitlines() if line.startswith(word)).removeprefix(word))


def measure(options):
    folder = Path(tempfile.mkdtemp(dir=options.where))
    snapshots, python = folder / "snapshots", str(options.python)
    own = [str(Path(__file__).resolve()), "--megabytes", str(options.megabytes), "--seconds", str(options.seconds),
           "--rounds", str(options.rounds), "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(options.package)}

    def cold():
        """Begin as after a power cut, but with memory at hand. Return the time, and what holds the memory."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(options.held)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holder.stdout.readline()
        holder.stdin.close()
        return time.time(), holder

    def run(*words):
        begun = time.time()
        logs = folder / "logs"
        command = [str(options.python), "-m", "holdfast", "run", "--nproc-per-node", "1", "--log-dir", str(logs), *words, *own, "--as", "job"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return begun, said((logs / "worker_0.log").read_text(), "times")

    def plain(*words):  # The words before the program, and a list of those behind it.
        return subprocess.run([*words[:-1], *own, "--as", "plain", *words[-1]], check=True, capture_output=True, text=True).stdout

    found = {name: [] for name in ("with", "without", "cost", "stall", "first", "writing")}
    for _ in range(options.rounds):
        for name, more in (("without", ()), ("with", ("--snapshot", str(snapshots), "--snapshot-every", f"{options.period}s", "--snapshot-keep", "1000"))):
            _, times = run(*more)
            steps = dict(enumerate([b - a for a, b in zip(times[2:], times[3:])], start=4))
            around = []
            for manifest in sorted(snapshots.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime):
                version = int(manifest.parent.name.rsplit("-", 1)[1])
                around.append([step for step in range(version - 3, version + 6) if step in steps])
                part = manifest.parent / "rank-0.safetensors"
                begin, end = (float(subprocess.run(["stat", "-c", "%.9W", str(p)], capture_output=True, text=True).stdout) for p in (part, manifest))
                found["writing"].append(end - begin)
                newest = part.stat().st_size
            mean = statistics.mean(steps[step] for step in steps.keys() - set(sum(around, [])))
            found[name].append(mean)
            for i, near in enumerate(around):
                cost = sum(steps[step] - mean for step in near)
                found["cost" if i else "first"].append(cost)
                if i:
                    found["stall"].append(max(steps[step] for step in near) - mean)
            shutil.rmtree(snapshots, ignore_errors=True)
    block, disk = mmap.mmap(-1, 1 << 25), []
    block.write(os.urandom(len(block)))
    for _ in range(5):
        begun = time.perf_counter()
        file = os.open(folder / "disk", os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        for _ in range(newest // len(block)):
            os.write(file, block)
        os.fsync(file)
        disk.append((time.perf_counter() - begun) * newest / (newest // len(block) * len(block)))
        os.close(file)
        (folder / "disk").unlink()
    report = said(plain(python, ()), "report")
    run("--snapshot", str(snapshots), "--snapshot-every", "10s")
    options.seconds = own[own.index("--seconds") + 1] = "0"
    torchrun = (str(Path(python).parent / "torchrun"), "--nproc-per-node", "1")
    ways = {
        "resume": lambda: run("--snapshot", str(snapshots), "--snapshot-every", "1000s", "--resume", "auto")[1],
        "torchrun": lambda: said(plain(*torchrun, ("--load",)), "times"),
        "python": lambda: said(plain(python, ("--load",)), "times"),
    }
    starts = {name: [] for name in ways}
    for _ in range(5):
        for name, way in ways.items():
            begun, holder = cold()
            starts[name].append(way()[0] - begun)
            holder.wait()
    shutil.rmtree(folder)

    def show(name, values, unit, scale=1):
        print(f"{name:52} {scale * statistics.median(values):9.1f} {unit}  ({scale * min(values):.1f} to {scale * max(values):.1f})", flush=True)

    print(f"{newest / 1e6:.0f} MB, {len(found['cost'])} snapshots in {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    show("a step without snapshots", found["without"], "ms", 1000)
    show("a step that none is near, with snapshots", found["with"], "ms", 1000)
    show("cost of a snapshot", found["cost"], "ms", 1000)
    show("cost of a job's first", found["first"], "ms", 1000)
    show("stall: its longest step, less the mean one", found["stall"], "ms", 1000)
    show("throughput with one every 30 s, so computed", [1 - cost / 30 for cost in found["cost"]], "%", 100)
    show("writing, beside the steps", found["writing"], "s")
    show("the disk's own time", disk, "s")
    show("torch.save and fsync: the loop waits", report["torch_save_ms"], "ms")
    show("DCP async_save: until the call returns", report["dcp_async_call_ms"], "ms")
    show("DCP async_save: with what it slows the steps", report["dcp_async_slower_ms"], "ms")
    show("resume, to the end of the first step", starts["resume"], "s")
    show("torchrun, torch.load, to the end of the first step", starts["torchrun"], "s")
    show("python, torch.load, to the end of the first step", starts["python"], "s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, help="build/release/python, if the package is not installed")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--where", default="/var/tmp", help="a folder on the disk")
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=100)
    parser.add_argument("--held", type=int, default=min(8000, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 21), help="megabytes")
    parser.add_argument("--period", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--as", dest="part", choices=("job", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    {"job": job_program, "plain": plain_program, None: measure}[options.part](options)


if __name__ == "__main__":
    main()
