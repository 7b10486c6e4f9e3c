#!/usr/bin/env python3
"""A page of a rank's state is lost: how long until all ranks have made a new step, by size of state. Beside it the rank's death.

lost_page.py --bin build/release/bin [--sizes 2,200,2000] [--rounds 8]

Two toys and a spare on this host, Adam; sizes are MB of parameters and moments. Rank 1 loses pages of its arena at random instants, one at a time
(toy --loses). In a second job of the same size it is killed (SIGKILL) as often. Milliseconds, medians, out of the scheduler's recovery reports:
  stop    the fault is known -> all have stopped and the plan is made; the others may be in the midst of a step
  repair  -> the rank has its state again
  step    -> all ranks have made a new step
  all     the sum
  usual   a healthy step of the same job
"""
import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

LIMIT_S = 300
BYTES = 12  # Of a parameter and its moments.


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Job:
    """A job of toys, which makes `steps` steps."""

    def __init__(self, bin_folder, folder, megabytes, steps, loses):
        self.bin, self.folder, self.name = bin_folder, folder, f"lost-page-{os.getpid()}-{time.monotonic_ns()}"
        (folder / "out").mkdir()
        command = [bin_folder / "msrun", "--worker_num=2", "--local_worker_num=2", f"--master_port={free_port()}", f"--log_dir={folder / 'log'}",
                   "--join=True", "--spares=1", "--max_restarts=100", bin_folder / "toy", "--steps", steps, "--elements", int(megabytes * 1e6 / BYTES),
                   "--pause", 2000, "--optimizer", "adam", "--loses", loses, "--out", folder / "out"]
        environment = {**os.environ, "HOLDFAST_JOB": self.name, "HOLDFAST_TRACE": str(folder / "trace"), "HOLDFAST_REHEARSALS": "0"}
        self.process = subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def status(self):
        told = subprocess.run([self.bin / "holdfast", "status", "--json", "--job", self.name], capture_output=True, text=True)
        return json.loads(told.stdout) if told.returncode == 0 else None

    def wait_for(self, what):
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end and self.process.poll() is None:
            status = self.status()
            if status and (found := what(status)):
                return found
            time.sleep(0.02)
        return None

    def kill(self, times):
        """Kill rank 1, each time once a spare is ready and some steps were made since."""
        for _ in range(times):
            before = self.wait_for(lambda s: s["state"] == "running" and s["version"] + 1)
            ready = self.wait_for(lambda s: s["version"] > (before or 0) + 1 and any(x["state"] == "ready" for x in s["spares"]) and s)
            if not ready:
                return
            os.kill(ready["ranks"][1]["pid"], signal.SIGKILL)

    def end(self):
        """Wait for its end; return the recoveries and the median healthy step."""
        self.process.wait(timeout=LIMIT_S)
        reports = self.folder / "log" / "recoveries.jsonl"
        recoveries = [json.loads(line) for line in reports.read_text().splitlines()] if reports.exists() else []
        times = {}
        for trace in (self.folder / "trace").glob("worker-*"):
            for line in trace.read_text().splitlines():
                event = json.loads(line)
                if event["event"] == "step":
                    times.setdefault(event["rank"], []).append(event["t_ns"])
        steps = [(b - a) / 1e6 for all_of in times.values() for a, b in zip(sorted(all_of), sorted(all_of)[1:])]
        return [r for r in recoveries if r["first_step_ms"] is not None], statistics.median(steps)


def show(what, megabytes, recoveries, usual):
    if not recoveries:
        return print(f"{megabytes:>6} MB  {what:<5} no recovery", flush=True)
    median = {key: statistics.median(f(r) for r in recoveries) for key, f in {
        "stop": lambda r: r["plan_ms"], "repair": lambda r: r["repair_ms"] - r["plan_ms"],
        "step": lambda r: r["first_step_ms"] - r["repair_ms"], "all": lambda r: r["first_step_ms"]}.items()}
    print(f"{megabytes:>6} MB  {what:<5}" + "".join(f"  {key} {value:7.2f}" for key, value in median.items()) + f"  usual {usual:7.2f}  n {len(recoveries)}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--sizes", type=lambda text: [float(word) for word in text.split(",")], default=[2, 200, 2000])
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    for megabytes in options.sizes:
        steps = 4 * options.rounds + 40
        with tempfile.TemporaryDirectory() as folder:
            show("page", megabytes, *Job(options.bin, Path(folder), megabytes, steps, options.rounds).end())
        with tempfile.TemporaryDirectory() as folder:
            job = Job(options.bin, Path(folder), megabytes, steps * 20 if megabytes < 100 else steps * 2, 0)
            job.kill(options.rounds)
            show("death", megabytes, *job.end())


if __name__ == "__main__":
    main()
