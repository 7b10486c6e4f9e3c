#!/usr/bin/env python3
"""What snapshots cost a PyTorch job, and how fast it begins again, beside torch.save and torch.distributed.checkpoint.

bench/snapshots.py --package build/release/python --python PYTHON [--megabytes 1000] [--seconds 60] [--period 30] [--rounds 3]

A job of one process has a model and Adam's moments of so many megabytes in all. Rounds of `seconds` with a snapshot
every `period` seconds, and without, take turns. `throughput` is the steps of the first by those of the second.
`stall` is by how much the longest step of a snapshot is longer than the median step. `writing` is the time from the
first byte of the part to the manifest, of which the disk's own is the time of writing as many bytes with fsync.
`resume` is the time from the command to the end of the first step; `torch.load` that of a plain program which loads its file.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WIDTH = 2048


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
    snapshots = folder / "snapshots"
    own = [str(Path(__file__).resolve()), "--megabytes", str(options.megabytes), "--seconds", str(options.seconds),
           "--rounds", str(options.rounds), "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(options.package)}

    def run(*words):
        begun = time.time()
        logs = folder / "logs"
        command = [str(options.python), "-m", "holdfast", "run", "--nproc-per-node", "1", "--log-dir", str(logs), *words, *own, "--as", "job"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
        return begun, said((logs / "worker_0.log").read_text(), "times")

    def plain(*words):
        begun = time.time()
        return begun, subprocess.run([str(options.python), *own, "--as", "plain", *words], check=True, capture_output=True, text=True).stdout

    found = {"with": [], "without": [], "longest": [], "median": [], "writing": []}
    for _ in range(options.rounds):
        for name, more in (("without", ()), ("with", ("--snapshot", str(snapshots), "--snapshot-every", f"{options.period}s"))):
            _, times = run(*more)
            steps = [b - a for a, b in zip(times[2:], times[3:])]
            found[name].append(len(steps) / sum(steps))
            if name == "with":
                found["median"].append(statistics.median(steps))
                found["longest"].append(max(steps))
                for manifest in snapshots.glob("*/manifest.json"):
                    begin, end = (float(subprocess.run(["stat", "-c", "%.9W", str(p)], capture_output=True, text=True).stdout)
                                  for p in (manifest.parent / "rank-0.safetensors", manifest))
                    found["writing"].append(end - begin)
                newest = max(snapshots.glob("*/rank-0.safetensors"), key=lambda p: p.stat().st_mtime).stat().st_size
                shutil.rmtree(snapshots)
    block, disk = os.urandom(1 << 23), []
    for _ in range(3):
        begun = time.perf_counter()
        with open(folder / "disk", "wb", buffering=0) as file:
            for _ in range(newest // len(block)):
                file.write(block)
            os.fsync(file.fileno())
        disk.append(time.perf_counter() - begun)
        (folder / "disk").unlink()
    report = said(plain()[1], "report")
    run("--snapshot", str(snapshots), "--snapshot-every", "10s")
    options.seconds = own[own.index("--seconds") + 1] = "0"
    resumes, loads = [], []
    for _ in range(3):
        begun, times = run("--snapshot", str(snapshots), "--snapshot-every", "1000s", "--resume", "auto")
        resumes.append(times[0] - begun)
        begun, text = plain("--load")
        loads.append(said(text, "times")[0] - begun)
    shutil.rmtree(folder)

    def show(name, values, unit, scale=1):
        print(f"{name:52} {scale * statistics.median(values):9.1f} {unit}  ({scale * min(values):.1f} to {scale * max(values):.1f})", flush=True)

    print(f"{newest / 1e6:.0f} MB, a snapshot every {options.period} s, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    show("throughput with snapshots, to without", [a / b for a, b in zip(found["with"], found["without"])], "%", 100)
    show("median step", found["median"], "ms", 1000)
    show("stall: longest step less the median one", [a - b for a, b in zip(found["longest"], found["median"])], "ms", 1000)
    show("writing, beside the steps", found["writing"], "s")
    show("the disk's own time", disk, "s")
    show("torch.save and fsync: the loop waits", report["torch_save_ms"], "ms")
    show("DCP async_save: until the call returns", report["dcp_async_call_ms"], "ms")
    show("DCP async_save: with what it slows the steps", report["dcp_async_slower_ms"], "ms")
    show("resume, to the end of the first step", resumes, "s")
    show("python, torch.load, to the end of the first step", loads, "s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, help="build/release/python, if the package is not installed")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--where", default="/var/tmp", help="a folder on the disk")
    parser.add_argument("--megabytes", type=float, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--period", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--as", dest="part", choices=("job", "plain"), help=argparse.SUPPRESS)
    parser.add_argument("--load", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    {"job": job_program, "plain": plain_program, None: measure}[options.part](options)


if __name__ == "__main__":
    main()
