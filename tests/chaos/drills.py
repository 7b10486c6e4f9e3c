#!/usr/bin/env python3
"""Has faults of all kinds happen to real training jobs, by `holdfast inject`, and compares the result bit for bit.

drills.py --bin build/release/bin --data DIR [--faults N] [--seed S] [--only TRIAL]

Each trial trains three or four ranks with replicas compared in each step, and has one to four faults come, each of a
drawn kind, in a drawn phase of a drawn step of a drawn rank. It checks: exit code 0; rank 0's final parameters,
optimizer state and buffers equal those of an undisturbed run byte for byte, those of every rank by their digest;
every fault is told of by name; no process and no file is left over.
"""
import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from chaos import reference  # noqa: E402
from checks import Violation, check_ends, ends_of  # noqa: E402
from job import Job, leftovers, processes_of  # noqa: E402
from scenario import OPTIMIZERS, program  # noqa: E402

PHASES = ["compute", "sum", "stage", "commit", "update", "between"]
HANG_TIMEOUT = 1.5  # Seconds.
# Kind → what `holdfast explain` says of the rank after it. Who is slow for so few steps is not named.
SAID = {
    "kill": r"rank {} \(process \d+\) was killed by signal 9",
    "stop": r"rank {} \(process \d+\) was stopped by a signal and ended by its agent",
    "hang": r"rank {} \(process \d+\) was ended by its agent: the others waited for it",
    "spin": r"rank {} \(process \d+\) was ended by its agent: the others waited for it",
    "slow": r"drill: rank {} .* is to wait for 0.002 s in each step",
    "page": r"rank {} \(process \d+ on \S+\): memory errors have taken 1 page",
    "flip": r"rank {} holds other values of `",
}


def draw(rng, number):
    """Scenario `number`. Flips are repaired where most ranks agree: so never two at once."""
    scenario = {
        "workers": [3, 4][number % 2], "fault": "drills", "optimizer": OPTIMIZERS[number % len(OPTIMIZERS)],
        "rich": number % 4 < 2, "spares": 1, "batch": 16, "steps": 300, "clip": 0, "drills": [],
    }
    step = 0
    for _ in range(rng.randrange(1, 5)):
        step += rng.randrange(30, 60)  # A recovery is over before the next fault comes.
        kind = rng.choice(list(SAID))
        phase = "between" if kind == "flip" else rng.choice(PHASES)
        scenario["drills"].append({"kind": kind, "rank": rng.randrange(scenario["workers"]), "step": step, "phase": phase})
    return scenario


def inject(arguments, job, drill):
    """Asks for one fault. It may be too late for it, or the rank's process may be being replaced: then it is not."""
    command = [arguments.bin / "holdfast", "inject", drill["kind"], "--job", job.name, "--rank", drill["rank"],
               "--at-step", drill["step"], "--phase", drill["phase"], *(["--for", 0.002] if drill["kind"] == "slow" else [])]
    asked = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    drill["said"] = (asked.stdout + asked.stderr).strip()
    return asked.returncode == 0


def trial(arguments, number, folder):
    """Runs one trial. Returns its faults. Raises a Violation or a TimeoutError."""
    scenario = draw(random.Random(f"{arguments.seed}-{number}"), number)
    final, _, ends = reference(arguments, scenario, folder)
    path = folder / f"trial-{number}"
    path.mkdir()
    settings = {"HOLDFAST_DIGEST_EVERY": "1", "HOLDFAST_ALLOW_INJECT": "1", "HOLDFAST_HANG_TIMEOUT": str(HANG_TIMEOUT),
                "HOLDFAST_REHEARSALS": "0"}
    with Job(arguments.bin, path, program(arguments, scenario, path / "final"), scenario["workers"], scenario["spares"],
             env=settings) as job:
        done = []
        for drill in scenario["drills"]:
            # Not all at once: the one before must have come, for a replaced process forgets what was ordered.
            if not job.until(lambda t, d=drill: t.newest_step() >= d["step"] - 20, what=f"step {drill['step'] - 20}"):
                break
            if inject(arguments, job, drill):
                done.append(drill)
                job.until(lambda t, d=drill: t.newest_step() > d["step"] + 1, what=f"the step after {drill}")
        code = job.wait()
        if code != 0:
            raise Violation(f"exit code {code} ({scenario}):\n{job.text()}")
        check_ends(ends_of(path / "log"), scenario, ends)
        told = subprocess.run([str(arguments.bin / "holdfast"), "explain", str(path / "log")], capture_output=True,
                              text=True, check=True).stdout
    if (path / "final").read_bytes() != final:
        raise Violation(f"the final state differs ({scenario})")
    for kind, rank in {(drill["kind"], drill["rank"]) for drill in done}:
        alike = {"hang", "spin"} if kind in ("hang", "spin") else {kind}
        ordered = sum(drill["kind"] in alike and drill["rank"] == rank for drill in done)
        if len(re.findall(SAID[kind].format(rank), told)) < ordered:
            raise Violation(f"of {ordered} times that rank {rank} had '{kind}', not all were told:\n{told}")
    if left := processes_of(job.name):
        raise Violation(f"processes {left} are left over ({scenario})")
    if files := leftovers(job.name):
        raise Violation(f"files are left over: {files} ({scenario})")
    shutil.rmtree(path)
    return done


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=60, help="go on until so many have come")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this trial alone")
    arguments = parser.parse_args()
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    folder = Path(tempfile.mkdtemp(prefix="holdfast-drills-"))
    began, number, done, failures = time.monotonic(), arguments.only or 0, [], 0
    while len(done) < arguments.faults and failures < 3:
        try:
            done += trial(arguments, number, folder)
        except (Violation, TimeoutError) as error:
            failures += 1
            print(f"trial {number}: {error}\nrepeat: {sys.argv[0]} --bin {arguments.bin} --data {arguments.data} "
                  f"--seed {arguments.seed} --only {number}\n(logs: {folder / f'trial-{number}'})", flush=True)
        number += 1
        if arguments.only is not None:
            break
    print(f"drills: {len(done)} faults of seed {arguments.seed} in {number} trials, {failures} violations, "
          f"{time.monotonic() - began:.0f} s: " + json.dumps({
              "kinds": Counter(d["kind"] for d in done), "phases": Counter(d["phase"] for d in done)}))
    if not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
