#!/usr/bin/env python3
"""Kills processes of real training jobs at random instants and compares the result bit for bit.

chaos.py --bin build/release/bin --data DIR [--kills N] [--seed S] [--journal FILE]

Each trial draws a scenario (scenario.py), runs it beside an undisturbed run of the same settings, and
checks: exit code 0; rank 0's final parameters, optimizer state and buffers equal byte for byte, those of
every rank by their digest; every step made exactly once by every rank, with the loss it has in the
undisturbed run; no process and no file left over. A failing trial prints the line that repeats it. With --journal every trial is a line of JSON in
FILE, and a later call goes on behind the last one until N processes were killed in all.
"""
import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from checks import (  # noqa: E402
    Violation, check_ends, check_generation, check_steps, check_undisturbed, ends_of, in_recovery,
)
from job import Job, alive, kill, leftovers, processes_of  # noqa: E402
from scenario import SEED, SOON, draw, program, settings  # noqa: E402

references = {}


def reference(arguments, scenario, folder):
    """The final file, steps and ends of an undisturbed run, which is made once for each settings()."""
    key = settings(scenario)
    if key not in references:
        path = folder / f"reference-{len(references)}"
        shutil.rmtree(path, ignore_errors=True)  # Left by a run that failed.
        path.mkdir()
        with Job(arguments.bin, path, program(arguments, scenario, path / "final"), scenario["workers"]) as job:
            if job.wait() != 0:
                raise Violation(f"the undisturbed run failed:\n{job.text()}")
            labels = (arguments.data / "train-labels-idx1-ubyte").read_bytes()
            made = check_undisturbed(job.trace, scenario, SEED, int.from_bytes(labels[4:8], "big"))
            ends = ends_of(path / "log")
            check_ends(ends, scenario, ends)
            references[key] = (path / "final").read_bytes(), made, ends
        shutil.rmtree(path)
    return references[key]


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


def trial(arguments, number, folder):
    """Runs one trial; returns its line of the journal. Raises a Violation or a TimeoutError."""
    rng = random.Random(f"{arguments.seed}-{number}")
    scenario = draw(rng, number)
    final, undisturbed, ends = reference(arguments, scenario, folder)
    path = folder / f"trial-{number}"
    path.mkdir()
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
    if left := processes_of(job.name):
        raise Violation(f"processes {left} are left over ({scenario})")
    if files := leftovers(job.name):
        raise Violation(f"files are left over: {files} ({scenario})")
    shutil.rmtree(path)
    del scenario["waves"]
    later = [each for wave in waves[1:] for each in wave]
    at_once = [wave for wave in waves if len(wave) > 1]
    return {"number": number, **scenario, "killed": [each["who"] for wave in waves for each in wave],
            "in_recovery": in_recovery(job.trace, scenario["workers"], later),
            "several": len(at_once),
            "within_1_ms": sum(wave[-1]["t_ns"] - wave[0]["t_ns"] < 1_000_000 for wave in at_once)}


def report(trials, seed, seconds):
    """Prints counts of kills, by everything that was drawn."""
    well = [each for each in trials if "violation" not in each]
    kills = Counter()
    for each in well:
        count = len(each["killed"])
        kills["fault", each["fault"]] += count
        kills["workers", str(each["workers"])] += count
        kills["optimizer", each["optimizer"]] += count
        kills["dropout and batch norm", "with" if each["rich"] else "without"] += count
        kills["spares", str(each["spares"])] += count
        for who in each["killed"]:
            kills["who", "rank 0" if who == 0 else "scheduler" if who == "scheduler" else "another rank"] += 1
    print(f"chaos: {sum(len(each['killed']) for each in well)} kills in {len(trials)} trials of seed {seed}, "
          f"{len(trials) - len(well)} violations, {seconds:.0f} s")
    for what in dict.fromkeys(key[0] for key in kills):
        print(f"  {what}: " + ", ".join(f"{k[1]} {v}" for k, v in sorted(kills.items()) if k[0] == what))
    print(f"  several in one wave: {sum(t['several'] for t in well)} times, "
          f"within a millisecond {sum(t['within_1_ms'] for t in well)} times; "
          f"in the midst of a recovery: {sum(t['in_recovery'] for t in well)} kills")


def run(arguments, trials, folder):
    """Makes trials until enough processes were killed, and adds them to the list."""
    number = arguments.only if arguments.only is not None else 1 + max((t["number"] for t in trials), default=-1)
    failures = 0
    while sum(len(each.get("killed", [])) for each in trials) < arguments.kills and failures < 5:
        try:
            trials.append(trial(arguments, number, folder))
        except (Violation, TimeoutError) as error:
            failures += 1
            trials.append({"number": number, "violation": str(error).partition("\n")[0]})
            print(f"trial {number}: {error}\nrepeat: {sys.argv[0]} --bin {arguments.bin} --data {arguments.data} "
                  f"--seed {arguments.seed} --only {number}\n(logs: {folder / f'trial-{number}'})", flush=True)
        if arguments.journal:
            with open(arguments.journal, "a", encoding="utf-8") as file:
                file.write(json.dumps(trials[-1]) + "\n")
        number += 1
        if arguments.only is not None:
            break


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=20, help="go on until this many processes were killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this trial alone")
    parser.add_argument("--journal", type=Path, help="go on behind the trials in this file, and add to it")
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    trials = []
    if arguments.journal and arguments.journal.exists():
        trials = [json.loads(line) for line in arguments.journal.read_text(encoding="utf-8").splitlines()]
    began = time.monotonic()
    run(arguments, trials, folder)
    failures = sum("violation" in each for each in trials)  # Includes those in the journal.
    report(trials, arguments.seed, time.monotonic() - began)
    if not failures:  # Otherwise logs and traces of failed trials stay.
        shutil.rmtree(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
