#!/usr/bin/env python3
"""The promise, shown: trains with 4 workers, kills two of them, and compares with an undisturbed run.

demo.py --bin build/release/bin --data DIR [--epochs N] [--spares K]. ./run calls it. All figures come
from the traces that every process writes (HOLDFAST_TRACE).
"""
import argparse
import contextlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "chaos"))
from job import Job, kill  # noqa: E402

WORKERS = 4
BATCH = 16  # Of each worker.


def first_after(events, t_ns, key=lambda e: True):
    return next((e for e in sorted(events, key=lambda e: e["t_ns"]) if e["t_ns"] >= t_ns and key(e)), None)


def who_told(trace, fault):
    """Words that say how the scheduler learned of a death."""
    told = fault and any(e["detected_ns"] == fault["detected_ns"] for e in trace.events("died"))
    return "Its agent told the scheduler, which" if told else "The scheduler"


def successor(trace, rank, generation, killed_ns):
    """Words that say which process took the rank in a generation, and whether it was a waiting spare."""
    pid = next((e["pid"] for e in trace.events("resume") if e["rank"] == rank and e["generation"] == generation), None)
    if pid is None:
        return "Nobody took its place"
    spare = any(e["child"] == pid for e in trace.events("promote"))
    waited = any(e["pid"] == pid and e["t_ns"] < killed_ns for e in trace.events("waiting"))
    what = "A new process" if not spare else "A spare" if waited else "A spare that was still starting"
    return f"{what} ({pid}) took its place"


def describe(number, rank, pid, killed_ns, job):
    """One paragraph on one recovery: what died, who saw it, milliseconds of each phase, steps lost."""
    trace = job.trace
    ms = lambda event: f"{(event['t_ns'] - killed_ns) / 1e6:.1f} ms" if event else "?"  # noqa: E731
    fault = first_after(trace.events("fault"), killed_ns)
    stop = first_after(trace.events("stop"), killed_ns)
    plan = first_after(trace.events("plan"), killed_ns)
    resume = first_after(trace.events("resume"), killed_ns)
    generation = resume["generation"] if resume else None
    steps = [e for e in trace.events("step") if e["generation"] == generation]
    firsts = [min((e for e in steps if e["rank"] == r), key=lambda e: e["t_ns"], default=None) for r in range(WORKERS)]
    last = max((e for e in firsts if e), key=lambda e: e["t_ns"], default=None)
    before = max((e["step"] for e in trace.events("step") if e["t_ns"] < killed_ns), default=0)
    version = resume.get("version", before) if resume else before
    print(f"Recovery {number}: worker {rank} (process {pid}) was killed with SIGKILL after step {before}. "
          f"{who_told(trace, fault)} knew {ms(fault)} after the kill and said stop at {ms(stop)}; all had stopped "
          f"and reported by {ms(plan)}; the group was formed again, as generation {generation}, at {ms(resume)}, "
          f"and went on from step {version}. {successor(trace, rank, generation, killed_ns)}; all {WORKERS} ranks had made a new step at {ms(last)}. "
          f"Steps lost: {max(0, before - version)}.")


def spares_in_words(spares):
    return "" if spares == 0 else ", 1 spare" if spares == 1 else f", {spares} spares"


class GoodOrder:
    """Ends the job and removes its folder if a signal ends this process."""

    def __init__(self):
        self.came, self.starting = None, False
        self.numbers = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
                        if signal.getsignal(n) != signal.SIG_IGN]
        for number in self.numbers:
            signal.signal(number, self.come)

    def come(self, number, _):
        self.came = number
        if not self.starting:
            self.leave()

    def leave(self):
        for each in self.numbers:
            signal.signal(each, signal.SIG_IGN)
        print("\ninterrupted: ends the job and removes its files", file=sys.stderr)
        sys.exit(128 + self.came)

    @contextlib.contextmanager
    def job(self, *arguments):
        """A Job. A signal that comes while the job is being started is handled after that."""
        self.starting = True
        with Job(*arguments) as job:
            self.starting = False
            if self.came is not None:
                self.leave()
            yield job


def digits_in(folder):
    """The number of digits to train with, from the header of their labels."""
    return int.from_bytes((folder / "train-labels-idx1-ubyte").read_bytes()[4:8], "big")


def train(order, arguments, folder, name, victims):
    print(f"\n{name}: {WORKERS} workers" + (spares_in_words(arguments.spares) if victims else ""), flush=True)
    path = folder / name.replace(" ", "-")
    path.mkdir()
    program = [arguments.bin / "mnist", "--data", arguments.data, "--epochs", arguments.epochs, "--batch", BATCH,
               "--seed", 7, "--optimizer", "momentum", "--model", "mlp", "--save", path / "final"]
    kills = []
    with order.job(arguments.bin, path, program, WORKERS, arguments.spares if victims else 0) as job:
        total = arguments.epochs * (digits_in(arguments.data) // (BATCH * WORKERS))
        for number, rank in enumerate(victims, 1):
            goal = total * number // (len(victims) + 1) + random.randrange(total // 10 + 1)
            patience = goal + total // 5  # If the machine is too busy for a spare to start.
            if not job.until(lambda t: t.newest_step() >= goal and t.pid_of(rank)
                             and (t.ready_spares() >= min(arguments.spares, 1) or t.newest_step() >= patience), 600, f"step {goal}"):
                break
            time.sleep(random.random() * 0.01)
            pid = job.trace.pid_of(rank)
            killed_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            kill(pid)
            kills.append((number, rank, pid, killed_ns))
            print(f"  killed worker {rank} (process {pid})", flush=True)
        code = job.wait(600)
        if code != 0:
            sys.exit(f"the run ended with exit code {code}:\n{job.text()}")
        for each in kills:
            describe(*each, job)
    if kills:
        draw(arguments.bin, path)
    # Rank 0's last line. After a promotion, it is in the log of the spare that became rank 0.
    logs = [p.read_text(errors="replace") for p in sorted((path / "log").glob("*.log"))]
    lines = [line for text in logs for line in text.splitlines() if "rank 0 of" in line and "accuracy" in line]
    last = max(lines, key=lambda line: int((re.search(r"epoch (\d+)", line) or [0, "0"])[1]), default="(no accuracy line)")
    return (path / "final").read_bytes(), last, len(kills)


def draw(binaries, path):
    """Has `holdfast timeline` draw the run's traces into a file that stays."""
    picture = binaries.parent / "recoveries.svg"
    subprocess.run([binaries / "holdfast", "timeline", path / "trace", "--output", picture], check=True, stdout=subprocess.DEVNULL)
    print(f"{picture} draws the run and its recoveries (a browser shows it)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--spares", type=int, default=2)
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    source = arguments.data / "SOURCE"
    print("data: " + (source.read_text().splitlines()[0] if source.exists() else str(arguments.data)))
    order = GoodOrder()
    with tempfile.TemporaryDirectory(prefix="holdfast-run-") as name:
        folder = Path(name)
        disturbed, said, kills = train(order, arguments, folder, "run with faults", [2, 0])
        undisturbed, said_undisturbed, _ = train(order, arguments, folder, "undisturbed run", [])
    print(f"\nwith {kills} kills:  {said}\nundisturbed:   {said_undisturbed}")
    if kills < 2:
        sys.exit("the training was over before both workers were killed: start with --epochs of more")
    if disturbed != undisturbed:
        sys.exit("parameters and optimizer state of the two runs DIFFER: this is an error in Holdfast")
    print(f"\nParameters and optimizer state of both runs are equal bit for bit ({len(disturbed):,} bytes compared).")


if __name__ == "__main__":
    main()
