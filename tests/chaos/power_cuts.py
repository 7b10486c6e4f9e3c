#!/usr/bin/env python3
"""Everything is lost at random instants, again and again: all processes of a job are killed at once, its launcher and
its scheduler too, while it trains, makes snapshots all the time, begins or resumes. The same command goes on from
the newest whole snapshot, until the job has ended. Its bits are those of an undisturbed run.

power_cuts.py --bin BIN [--cuts N] [--seed S] [--servers K] [--grace SECONDS [--elements E]]

With --grace, each cut is a SIGTERM to the launcher, in a job that makes no other snapshots: the last step that was made
has to be in one, and the exit code is 143.
"""
import argparse
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "examples"))
from demo_power_cut import cut, newest  # noqa: E402

STEPS, WORKERS = 1500, 2


class Trial:
    def __init__(self, arguments, folder, draw):
        self.arguments, self.folder, self.draw = arguments, folder, draw
        self.snapshots = folder / "snapshots"
        self.longest = 0  # Seconds that an end by a signal took.

    def start(self, name, options, pause):
        """Begin a job, or go on with it."""
        (self.folder / name).mkdir(exist_ok=True)
        servers = self.arguments.servers
        command = [self.arguments.bin / "msrun", f"--worker_num={WORKERS}", "--join=True", f"--server_num={servers}",
                   f"--master_port={self.draw.randrange(20000, 30000)}", f"--log_dir={self.folder / name / 'log'}", *options,
                   self.arguments.bin / "toy", "--out", self.folder / name, "--steps", self.arguments.steps, "--elements", self.arguments.elements,
                   "--optimizer", "adam", "--private", "own", "--pause", pause, "--keys", 50 if servers else 0]
        environment = {**os.environ, "HOLDFAST_JOB": f"cuts-{os.getpid()}-{secrets.token_hex(4)}"}
        with (self.folder / name / "said").open("ab") as said:
            self.said_before = said.tell()
            return subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=said, stderr=said, env=environment)

    def bits(self, process, name):
        """The states of a job that ends well."""
        if process.wait(300) != 0:
            sys.exit(f"{name} ended with {process.returncode}:\n{(self.folder / name / 'said').read_text()[-4000:]}")
        return [(self.folder / name / f"rank-{rank}").read_bytes() for rank in range(WORKERS)]

    def said(self):
        """What the newest start has said."""
        return (self.folder / "cut" / "said").read_bytes()[self.said_before:].decode(errors="replace")

    def check(self, at):
        """Checks that the newest start has begun with this snapshot, as far as it has come."""
        said = self.said()
        if "begins anew" in said and at:
            sys.exit(f"it has begun anew, and there was a snapshot of step {at}:\n{said}")
        if "begins again" in said and f"begins again from the snapshot of step {at} " not in said:
            sys.exit(f"it has begun with another snapshot than that of step {at}:\n{said}")

    def end(self, process):
        """Ends the job as a cluster does, and checks that its last step is in a snapshot."""
        begun = time.monotonic()
        process.terminate()
        code = process.wait(300)
        self.longest = max(self.longest, time.monotonic() - begun)
        if code not in (0, 143):
            sys.exit(f"it has ended with {code}:\n{self.said()}")
        status = self.folder / "cut" / "log" / "last_status.json"
        made = json.loads(status.read_text())["version"] if status.exists() else 0
        if newest(self.snapshots) < made:
            sys.exit(f"step {made} was made, and the newest snapshot is of step {newest(self.snapshots)}:\n{self.said()}")

    def train(self, most):
        """Cut the power until the job has ended; return how often, and the states."""
        grace = self.arguments.grace
        every = ["--snapshot_every", "1000000", "--grace", grace] if grace else ["--snapshot_every", "10ms"]
        options = ["--snapshot", self.snapshots, "--resume", "auto", *every]
        cuts, at = 0, 0
        while True:
            process = self.start("cut", options, 1000)
            wait = None if cuts >= most else self.draw.uniform(0.05, self.arguments.longest)
            try:
                process.wait(wait)
                bits = self.bits(process, "cut")
                self.check(at)
                if at and f"snapshot of step {at} " not in self.said():
                    sys.exit(f"it has not gone on from step {at}:\n{self.said()}")
                return cuts, bits
            except subprocess.TimeoutExpired:
                if grace:
                    self.end(process)
                else:
                    cut(process.pid)
                    process.wait()
            cuts += 1
            self.check(at)
            before, at = at, newest(self.snapshots)
            if at < before:
                sys.exit(f"after cut {cuts} the newest whole snapshot is of step {at}, and was of {before}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--grace", type=int, default=0)
    parser.add_argument("--elements", type=int, default=5000)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--longest", type=float, default=0.9, help="seconds that a start may go on at most")
    arguments = parser.parse_args()
    arguments.bin = arguments.bin.resolve()
    print(f"seed {arguments.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    cuts = jobs = 0
    draw = random.Random(arguments.seed)
    expected = None
    while cuts < arguments.cuts:
        with tempfile.TemporaryDirectory(prefix="holdfast-cuts-", dir="/var/tmp") as name:
            trial = Trial(arguments, Path(name), draw)
            expected = expected or trial.bits(trial.start("undisturbed", [], 0), "undisturbed")
            came, bits = trial.train(arguments.cuts - cuts)
            cuts, jobs = cuts + came, jobs + 1
            if bits != expected:
                sys.exit(f"job {jobs}: after {came} cuts the bits DIFFER")
            ends = f"; the longest end took {trial.longest:.1f} s" if arguments.grace else ""
            print(f"job {jobs}: {came} cuts, equal bits; {cuts} cuts in all{ends}", flush=True)
        for left in Path(f"/dev/shm/holdfast-{os.getuid()}").glob(f"cuts-{os.getpid()}-*"):
            subprocess.run(["rm", "-rf", left], check=True)
    print(f"{cuts} cuts in {jobs} jobs: no bit differs")


if __name__ == "__main__":
    main()
