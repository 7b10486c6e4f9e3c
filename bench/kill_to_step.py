#!/usr/bin/env python3
"""SIGKILL of a worker → all ranks have completed a new step; beside it torchrun on the same model.

bench/kill_to_step.py --bin build/release/bin --data build/digits [--rounds 9] [--workers 4] [--torch PYTHON]

Ours: mnist (784-512-512-10, momentum; 4 workers unless told: where that is more than cores, a rank that is to stop
waits for one) with a spare and without, from the traces; beside it the program's own start-up (exec → first step of
a fresh job's worker) and one step. The phases, with what they are to
take at most: detection, kill → known to the scheduler; abort, the scheduler says stop → a survivor has left its
collective, from where it came to one if that was later (its own forward and backward pass is no waiting), for the
last survivor; re-form, the last rank has the version all go on from → the new group is formed in all ranks.
torchrun: the same model in DDP over Gloo with a checkpoint at every step and `--max-restarts`, tuned as far as it
goes (bench/torchrun.py); steps lost are counted too. Prints one table; of a
recovery that took several times the median it says where the time went. With --check it fails where a median is out of all proportion to the
program's own start in the same run: the bounds are 4 to 400 times what is usual, so that they hold on a busy machine as well.
"""
import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "chaos"))
from job import Job, kill  # noqa: E402
from torchrun import Torchrun  # noqa: E402

SPARE_LIMIT = 120  # Seconds: a spare starts only while nothing else wants the processor.
UNSEEN = 0.25  # Seconds after a kill in which the bench does nothing.
BATCH = 16  # Samples of each worker.
OUTLIER = 3  # Medians: a recovery that took longer is explained.
TORCHRUN_LIMIT = 90  # Seconds for a start or a restart, on a busy machine.


def table_row(name, values, note=""):
    values = sorted(values)
    print(f"{name:44} {statistics.median(values):9.2f} {values[0]:9.2f} {values[-1]:9.2f}  {len(values):3}  {note}", flush=True)


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def first_steps(trace, at, belongs, workers):
    """rank → its first step after `at` that belongs; None until all ranks have one."""
    found = {}
    for event in sorted(trace.events("step"), key=lambda e: e["t_ns"]):
        if event["t_ns"] > at and belongs(event):
            found.setdefault(event["rank"], event)
    return found if len(found) == workers else None


def of_new_generation(trace, at):
    """A function that tells whether a step was made after the recovery."""
    newest = max((e["generation"] for e in trace.events("resume") if e["t_ns"] > at), default=None)
    return lambda event: event["generation"] == newest


def phases(trace, at):
    """Milliseconds of detection, abort and re-form of the recovery from the one kill at `at`."""
    later = sorted((e for e in trace.lines if e["t_ns"] > at), key=lambda e: e["t_ns"])
    scheduler = trace.scheduler_pid()

    def events(name, of_ranks):
        return [e for e in later if e["event"] == name and (e["pid"] != scheduler) == of_ranks]

    stop = events("stop", False)[0]["t_ns"]
    plan = events("plan", False)[-1]["t_ns"]
    survivors = {e["pid"] for e in trace.events("step") if e["t_ns"] < at}
    parked = {e["pid"]: e["t_ns"] - max(stop, e["waited_since_ns"]) for e in reversed(events("parked", True))}
    generation = max(e["generation"] for e in events("resume", True))
    formed = [e["t_ns"] for e in events("reform", True) if e["generation"] == generation]
    repaired = max([e["t_ns"] for e in events("repair", True)] + [plan])
    known = events("fault", False)[0]["t_ns"]
    spans = (known - at, max(t for pid, t in parked.items() if pid in survivors), max(formed) - repaired)
    return [ns / 1e6 for ns in spans]


def explain(trace, at, firsts, per_epoch):
    """Where the milliseconds of a long recovery went, by the traces."""
    later = [e for e in trace.lines if e["t_ns"] > at]
    ms = lambda t_ns: f"{max(0.0, (t_ns - at) / 1e6):.0f} ms"  # noqa: E731
    parked = [e for e in later if e["event"] == "parked"]
    formed = max(e["t_ns"] for e in later if e["event"] == "reform")
    step = min(e["step"] for e in firsts.values())
    passes = max((e["waited_since_ns"] for e in parked), default=at)
    evaluates = ", the first of an epoch, in which the example evaluates" if (step - 1) % per_epoch == 0 else ""
    return (f"    {ms(max(e['t_ns'] for e in firsts.values()))}: survivors came from their own passes by {ms(passes)}, all had stopped by "
            f"{ms(max(e['t_ns'] for e in parked))}, the group was there at {ms(formed)}; then step {step}{evaluates}")


def samples_in(folder):
    return int.from_bytes((folder / "train-labels-idx1-ubyte").read_bytes()[4:8], "big")


def ours(arguments, spares, rounds, folder):
    """Several kills in one job; a kill waits until the former spare's successor is ready."""
    times, steps, found, explained = [], [], [], []
    per_epoch = samples_in(arguments.data) // (BATCH * arguments.workers)
    path = folder / f"ours-{spares}"
    path.mkdir()
    program = [arguments.bin / "mnist", "--data", arguments.data, "--epochs", 100000, "--steps", 1000000, "--batch", BATCH,
               "--seed", 3, "--optimizer", "momentum", "--model", "mlp"]
    began = now()
    with Job(arguments.bin, path, program, arguments.workers, spares, max_restarts=100) as job:
        job.until(lambda t: t.newest_step() >= 20, what="the first steps")
        startup = (min(e["t_ns"] for e in job.trace.events("step")) - began) / 1e6
        for _ in range(rounds):
            time.sleep(3.0)  # Let all ranks make steps for a while.
            job.until(lambda t: t.ready_spares() >= spares, limit=SPARE_LIMIT, what="a ready spare", every=0.1)
            victim = job.trace.pid_of(random.randrange(arguments.workers))
            at = now()
            kill(victim)
            # The traces have the times. Do not read them during the recovery: that takes a core from the job.
            time.sleep(UNSEEN)
            if not job.until(lambda t, at=at: first_steps(t, at, of_new_generation(t, at), arguments.workers),
                             what="a step of all ranks", every=0.1):
                sys.exit(f"the job ended:\n{job.text()}")
            firsts = first_steps(job.trace, at, of_new_generation(job.trace, at), arguments.workers)
            times.append((max(e["t_ns"] for e in firsts.values()) - at) / 1e6)
            found.append(phases(job.trace, at))
            explained.append(explain(job.trace, at, firsts, per_epoch))
        mine = sorted(e["t_ns"] for e in job.trace.events("step") if e["rank"] == 0)
        steps = [(b - a) / 1e6 for a, b in zip(mine, mine[1:])]
        job.process.send_signal(signal.SIGTERM)
        job.wait()
    long = [text for ms, text in zip(times, explained) if ms > OUTLIER * statistics.median(times)]
    return times, startup, steps, list(zip(*found)), long


def torchrun(arguments, number, folder):
    """Milliseconds to the new step of all ranks, and the steps lost, of one kill."""
    path = folder / f"torchrun-{number}"
    path.mkdir()
    with Torchrun(arguments.torch, path, arguments.workers, 1000000, "--checkpoint") as run:
        run.until(lambda t: True if t.newest_step() >= 20 else None, TORCHRUN_LIMIT)
        old = {e["pid"] for e in run.trace.events("step")}
        victim = random.choice(sorted(old))
        at = now()
        kill(victim)
        first = run.until(lambda t: first_steps(t, at, lambda e: e["pid"] not in old, arguments.workers), TORCHRUN_LIMIT)
        made = max(e["step"] for e in run.trace.events("step") if e["pid"] in old)
        return ((max(e["t_ns"] for e in first.values()) - at) / 1e6, made + 1 - min(e["step"] for e in first.values()))


def phase_rows(found, long):
    for name, values in zip(("detection, to be ≤ 1", "abort, to be ≤ 1", "re-form, to be ≤ 5"), found):
        table_row(f"  {name}", values)
    print(*long, sep="\n", end="\n" * bool(long), flush=True)


def check(startup, bounds):
    for what, (values, ratio) in bounds.items():
        if not values or statistics.median(values) > ratio * startup:
            sys.exit(f"{what} took {values} ms, and should take less than {ratio} of a start of {startup:.0f} ms")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--torch", type=Path, help="a Python with torch; without it torchrun is left out")
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    print(f"{'milliseconds':44} {'median':>9} {'min':>9} {'max':>9}    n  load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        with_spare, _, steps, found, long = ours(arguments, 1, arguments.rounds, folder)
        table_row("kill → all ranks stepped, with a spare", with_spare)
        phase_rows(found, long)
        table_row("  one step (healthy)", steps)
        without, startup, _, found_without, long_without = ours(arguments, 0, arguments.rounds, folder)
        table_row("kill → all ranks stepped, no spare", without)
        phase_rows(found_without, long_without)
        table_row("  the program's own start (msrun → first step)", [startup])
        if arguments.check:
            check(startup, {"a recovery with a spare": (with_spare, 1), "a recovery without one": (without, 4),
                            "the word of a death": (found[0] + found_without[0], 0.25)})
        if arguments.torch:
            times, lost = zip(*(torchrun(arguments, i, folder) for i in range(min(5, arguments.rounds))))
            table_row("torchrun: kill → all ranks stepped", times, f"steps lost: {lost} (checkpoint at every step)")


if __name__ == "__main__":
    main()
