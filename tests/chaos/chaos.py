#!/usr/bin/env python3
"""Kills processes of real training jobs at random instants and compares the result bit for bit.

chaos.py --bin build/release/bin --data DIR [--kills N] [--seed S] [--journal FILE]

Each trial draws a scenario (scenario.py), runs it beside an undisturbed run of the same settings, and
checks: exit code 0; rank 0's final parameters, optimizer state and buffers equal byte for byte, those of
every rank by their digest; every step made exactly once by every rank, with the loss it has in the
undisturbed run; no process and no file left over. A failing trial prints the line that repeats it. With --journal every trial is a line of JSON in
FILE, and a later call goes on behind the last one until N processes were killed in all.
"""
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from checks import Violation, check_ends, check_generation, check_steps, ends_of, in_recovery  # noqa: E402
from job import Job, alive, kill  # noqa: E402
from scenario import SOON, draw, program  # noqa: E402
from trials import options, reference, run, see_that_nothing_is_left  # noqa: E402


def strike(job, rng, wave, scenario):
    """Kills the victims of one wave; returns for each that was alive what it was, and when."""
    if wave[0] == SOON:  # A promotion takes some milliseconds, a new process a tenth of a second.
        wave = wave[1:]
        time.sleep(rng.random() * (0.01 if scenario["spares"] else 0.2))
    else:
        # Anywhere in the training, its last step, evaluation and end included.
        now = job.trace.newest_step()
        goal = min(now + rng.randrange(1, 1 + scenario["steps"] // 2), scenario["steps"])
        if not job.until(lambda t: t.newest_step() >= goal, what=f"step {goal}"):
            return []
        time.sleep(rng.random() * 0.005)
    job.trace.poll()
    victims = [(v, job.trace.scheduler_pid() if v == "scheduler" else job.trace.pid_of(v)) for v in wave]
    victims = [(who, pid) for who, pid in victims if pid is not None and alive(pid)]
    done = []
    for who, pid in victims:
        at = time.monotonic_ns()
        if kill(pid, signal.SIGKILL):
            done.append({"who": who, "t_ns": at})
    return done


def trial(arguments, number, path):
    """Runs one trial; returns its line of the journal. Raises a Violation or a TimeoutError."""
    rng = random.Random(f"{arguments.seed}-{number}")
    scenario = draw(rng, number)
    final, undisturbed, ends = reference(arguments, scenario)
    waves = []
    with Job(arguments.bin, path, program(arguments, scenario, path / "final"), scenario["workers"],
             scenario["spares"]) as job:
        for wave in scenario["waves"]:
            waves.append(strike(job, rng, wave, scenario))
        code = job.wait()
        if code != 0:
            raise Violation(f"exit code {code} after {waves} ({scenario}):\n{job.text()}")
        check_steps(job.trace, scenario, undisturbed)
        check_generation(job.trace, scenario)
        check_ends(ends_of(path / "log"), scenario, ends)
    if (path / "final").read_bytes() != final:
        raise Violation(f"the final state differs ({scenario})")
    see_that_nothing_is_left(job)
    del scenario["waves"]
    later = [each for wave in waves[1:] for each in wave]
    at_once = [wave for wave in waves if len(wave) > 1]
    return {**scenario, "faults": [each["who"] for wave in waves for each in wave],
            "in_recovery": in_recovery(job.trace, scenario["workers"], later),
            "several": len(at_once),
            "within_1_ms": sum(wave[-1]["t_ns"] - wave[0]["t_ns"] < 1_000_000 for wave in at_once)}


def report(trials, seed, seconds):
    """Prints counts of kills, by everything that was drawn."""
    well = [each for each in trials if "violation" not in each]
    kills = Counter()
    for each in well:
        count = len(each["faults"])
        kills["fault", each["fault"]] += count
        kills["workers", str(each["workers"])] += count
        kills["optimizer", each["optimizer"]] += count
        kills["dropout and batch norm", "with" if each["rich"] else "without"] += count
        kills["spares", str(each["spares"])] += count
        for who in each["faults"]:
            kills["who", "rank 0" if who == 0 else "scheduler" if who == "scheduler" else "another rank"] += 1
    print(f"chaos: {sum(len(each['faults']) for each in well)} kills in {len(trials)} trials of seed {seed}, "
          f"{len(trials) - len(well)} violations, {seconds:.0f} s")
    for what in dict.fromkeys(key[0] for key in kills):
        print(f"  {what}: " + ", ".join(f"{k[1]} {v}" for k, v in sorted(kills.items()) if k[0] == what))
    print(f"  several in one wave: {sum(t['several'] for t in well)} times, "
          f"within a millisecond {sum(t['within_1_ms'] for t in well)} times; "
          f"in the midst of a recovery: {sum(t['in_recovery'] for t in well)} kills")


def main():
    arguments = options(__doc__, "kills", 20).parse_args()
    began = time.monotonic()
    trials = run(arguments, trial)
    report(trials, arguments.seed, time.monotonic() - began)
    return 1 if any("violation" in each for each in trials) else 0  # Includes those in the journal.


if __name__ == "__main__":
    sys.exit(main())
