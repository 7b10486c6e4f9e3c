#!/usr/bin/env python3
"""Everything is lost, again and again: kills all processes of a job in mid-epoch, its launcher and its scheduler
too, starts the same command again, and compares with an undisturbed run.

demo_power_cut.py --bin build/release/bin --data DIR [--epochs N] [--cuts K]. ./run --power-cut calls it.
"""
import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from demo import BATCH, WORKERS, digits_in


def family(pid):
    """A process and all that it and its children have started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                pass  # It has just ended.
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found


def cut(pid):
    """Kill them all. None may learn of the death of another, so all are stopped first."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        victims = family(pid)
        for each in victims:
            with contextlib.suppress(ProcessLookupError):  # It has just ended by itself.
                os.kill(each, number)
    return len(victims)


def newest(folder):
    """The step of the newest whole snapshot; 0: there is none."""
    return max((int(p.parent.name.rpartition("-")[2]) for p in folder.glob("*/manifest.json")), default=0)


class Runs:
    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.total = arguments.epochs * (digits_in(arguments.data) // (BATCH * WORKERS))

    def start(self, name, options):
        """Begin a job, or go on with it: the command is the same."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        command = [self.arguments.bin / "msrun", f"--worker_num={WORKERS}", f"--local_worker_num={WORKERS}", "--join=True",
                   f"--master_port={random.randrange(20000, 30000)}", f"--log_dir={path / 'log'}", *options,
                   self.arguments.bin / "mnist", "--data", self.arguments.data, "--epochs", self.arguments.epochs, "--batch", BATCH,
                   "--seed", 7, "--optimizer", "momentum", "--model", "mlp", "--save", path / "final"]
        with (path / "said").open("ab") as said:
            return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def end(self, process, name):
        code = process.wait(1200)
        if code != 0:
            sys.exit(f"the run ended with exit code {code}:\n{(self.folder / name / 'said').read_text()[-4000:]}")
        return (self.folder / name / "final").read_bytes()

    def lose_all(self):
        """Train with snapshots, and lose everything some times; return what was trained."""
        name, snapshots = "run-with-power-cuts", self.folder / "snapshots"
        options = ["--snapshot", snapshots, "--snapshot_every", "100ms", "--resume", "auto"]
        for number in range(1, self.arguments.cuts + 1):
            goal = self.total * number // (self.arguments.cuts + 1)
            process = self.start(name, options)
            while newest(snapshots) < goal and process.poll() is None:
                time.sleep(0.01)
            if process.poll() is not None:
                sys.exit(f"the training was over before everything was killed: start with --epochs of more\n"
                         f"{(self.folder / name / 'said').read_text()[-2000:]}")
            time.sleep(random.random() * 0.2)
            victims = cut(process.pid)
            process.wait()
            print(f"  killed all {victims} processes at once, launcher and scheduler too; the newest whole snapshot is of step "
                  f"{newest(snapshots)} of {self.total}", flush=True)
        final = self.end(self.start(name, options), name)
        for line in re.findall(r"begins again from the snapshot of step \d+", (self.folder / name / "said").read_text()):
            print(f"  it {line}")
        return final


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--cuts", type=int, default=3)
    parser.add_argument("--power-cut", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    with tempfile.TemporaryDirectory(prefix="holdfast-power-") as name:
        runs = Runs(arguments, Path(name))
        print(f"\nrun with power cuts: {WORKERS} workers, a snapshot ten times a second", flush=True)
        disturbed = runs.lose_all()
        print("\nundisturbed run", flush=True)
        undisturbed = runs.end(runs.start("undisturbed-run", []), "undisturbed-run")
    subprocess.run([arguments.bin / "holdfast", "clean"], check=False, capture_output=True)
    if disturbed != undisturbed:
        sys.exit("parameters and optimizer state of the two runs DIFFER: this is an error in Holdfast")
    print(f"\nEverything was lost {arguments.cuts} times. Parameters and optimizer state of both runs are equal bit for bit "
          f"({len(disturbed):,} bytes compared).")


if __name__ == "__main__":
    main()
