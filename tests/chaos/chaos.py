#!/usr/bin/env python3
"""Kills processes of real training jobs at random instants and compares the result bit for bit.

chaos.py --bin build/release/bin --data DIR [--kills N] [--seed S] [--keep]

Each trial draws a scenario (world size, optimizer, dropout and batch norm, spares, who is killed and
when), runs it beside an undisturbed run of the same settings, and checks: exit code 0; final
parameters, optimizer state and buffers equal byte for byte; every step committed exactly once by every
rank (a step that a dead process had committed is not made again); no process and no file left over. A
failing trial prints the line that repeats it.
"""
import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from job import Job, alive, kill, leftovers, processes_of  # noqa: E402

OPTIMIZERS = ["sgd", "momentum", "adam", "adamw"]
# name, victims drawn from a Random and the world size
FAULTS = {
    "one": lambda r, n: [[r.randrange(n)]],
    "rank 0": lambda r, n: [[0]],
    "two at once": lambda r, n: [r.sample(range(n), min(2, n))],
    "all at once": lambda r, n: [list(range(n))],
    "one more during the recovery": lambda r, n: [[r.randrange(n)], ("soon", [r.randrange(n)])],
    "the scheduler": lambda r, n: [["scheduler"]],
    "the scheduler and a worker": lambda r, n: [["scheduler", r.randrange(n)]],
    "the scheduler in mid-recovery": lambda r, n: [[r.randrange(n)], ("soon", ["scheduler"])],
    "the same rank twice": lambda r, n: (lambda k: [[k], [k]])(r.randrange(n)),
}


class Violation(Exception):
    pass


def draw(rng, number):
    """Scenario `number`: faults and world sizes go round, the rest is drawn."""
    workers = [4, 2, 4, 1][number % 4]
    fault = list(FAULTS)[number % len(FAULTS)]
    return {
        "workers": workers, "fault": fault, "optimizer": OPTIMIZERS[(number // 2) % 4],
        "rich": rng.random() < 0.5,  # dropout and batch norm in the model
        "spares": rng.choice([0, 0, 1, 2]), "batch": 16, "steps": rng.randrange(60, 120),
    }


def program(arguments, scenario, save):
    command = [arguments.bin / "mnist", "--data", arguments.data, "--epochs", 1000, "--steps", scenario["steps"],
               "--batch", scenario["batch"], "--seed", 3, "--optimizer", scenario["optimizer"], "--model", "mlp",
               "--save", save]
    if scenario["rich"]:
        command += ["--dropout", 0.2, "--batch-norm"]
    return command


references = {}


def reference(arguments, scenario, folder):
    key = tuple(scenario[k] for k in ("workers", "optimizer", "rich", "batch", "steps"))
    if key not in references:
        path = folder / f"reference-{len(references)}"
        path.mkdir()
        with Job(arguments.bin, path, program(arguments, scenario, path / "final"), scenario["workers"]) as job:
            if job.wait() != 0:
                raise Violation(f"the undisturbed run failed:\n{job.text()}")
        references[key] = (path / "final").read_bytes()
    return references[key]


def strike(job, rng, wave, scenario):
    """Kills one wave's victims; returns how many were alive to be killed."""
    if isinstance(wave, tuple):  # Soon after the former: while the others recover.
        time.sleep(rng.random() * 0.02)
        wave = wave[1]
    else:
        # Anywhere in the training, its last step, evaluation and end included.
        now = job.trace.newest_step()
        goal = min(now + rng.randrange(1, 1 + scenario["steps"] // 2), scenario["steps"])
        if not job.until(lambda t: t.newest_step() >= goal, what=f"step {goal}"):
            return 0
        time.sleep(rng.random() * 0.005)
    job.trace.poll()
    pids = [job.trace.scheduler_pid() if v == "scheduler" else job.trace.pid_of(v) for v in wave]
    return sum(1 for pid in pids if pid is not None and alive(pid) and kill(pid, signal.SIGKILL))


def check_steps(job, scenario):
    """Every rank committed every step exactly once, over all the processes that had the rank."""
    made = defaultdict(list)
    for line in job.trace.events("step"):
        made[line["rank"]].append(line["step"])
    for rank in range(scenario["workers"]):
        steps = sorted(made[rank])
        twice = {s for s in steps if steps.count(s) > 1}
        if twice:
            raise Violation(f"rank {rank} made steps {sorted(twice)} twice")
        missing = set(range(1, scenario["steps"] + 1)) - set(steps)
        # A process killed between its commit and its trace line made the step but could not say so.
        restarts = len(job.trace.pids_of(rank)) - 1
        if len(missing) > restarts:
            raise Violation(f"rank {rank} lost steps {sorted(missing)} over {restarts} restarts")


def trial(arguments, number, folder):
    rng = random.Random(f"{arguments.seed}-{number}")
    scenario = draw(rng, number)
    expected = reference(arguments, scenario, folder)
    path = folder / f"trial-{number}"
    path.mkdir()
    kills = 0
    with Job(arguments.bin, path, program(arguments, scenario, path / "final"), scenario["workers"],
             scenario["spares"]) as job:
        for wave in FAULTS[scenario["fault"]](rng, scenario["workers"]):
            kills += strike(job, rng, wave, scenario)
        code = job.wait()
        if code != 0:
            raise Violation(f"exit code {code} after {kills} kills ({scenario}):\n{job.text()}")
        check_steps(job, scenario)
    if (path / "final").read_bytes() != expected:
        raise Violation(f"the final state differs ({scenario})")
    left = processes_of(job.name)
    if left:
        raise Violation(f"processes {left} are left over ({scenario})")
    files = leftovers(job.name)
    if files:
        raise Violation(f"files are left over: {files} ({scenario})")
    shutil.rmtree(path)
    return kills, scenario


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=20, help="go on until this many processes were killed")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this trial alone")
    parser.add_argument("--keep", action="store_true", help="keep logs and traces of the trials that fail")
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-chaos-"))
    kills = number = failures = 0
    by_fault = defaultdict(int)
    began = time.monotonic()
    if arguments.only is not None:
        number = arguments.only
    while kills < arguments.kills:
        try:
            done, scenario = trial(arguments, number, folder)
            kills += done
            by_fault[scenario["fault"]] += done
        except (Violation, TimeoutError) as error:
            failures += 1
            print(f"trial {number}: {error}\nrepeat: {sys.argv[0]} --bin {arguments.bin} --data {arguments.data} "
                  f"--seed {arguments.seed} --only {number} --keep\n(logs: {folder / f'trial-{number}'})", flush=True)
            arguments.keep = True
            if failures >= 5:
                break
        number += 1
        if arguments.only is not None:
            break
    print(f"chaos: {kills} kills in {number} trials, {failures} violations, {time.monotonic() - began:.0f} s; "
          + ", ".join(f"{k}: {v}" for k, v in sorted(by_fault.items())))
    if not arguments.keep or not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
