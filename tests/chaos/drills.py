#!/usr/bin/env python3
"""Has faults of all kinds happen to real training jobs, by `holdfast inject`, and compares the result bit for bit.

drills.py --bin build/release/bin --data DIR [--faults N] [--seed S] [--kinds KIND,...] [--only TRIAL] [--journal FILE]

Each trial trains one to four ranks on one host, or four on two, with replicas compared in each step, and has two to five
faults come, each of a drawn kind, in a drawn phase of a drawn step of a drawn rank. It checks: exit code 0; rank 0's final
parameters, optimizer state and buffers equal those of an undisturbed run byte for byte, those of every rank by their
digest; every fault is told of by name; no process and no file is left over. What a job can not repair must be said: of two
ranks, a flipped bit ends the job, and so does a lost page of a lone rank; a lone rank is spared flips, and a rank without
links cuts, by a refusal that says why.
The two hosts need what docs/testing-hosts.md says; HOLDFAST_TEST_WITHOUT_HOSTS=1 leaves them out where they can not be had.
"""
import json
import os
import random
import re
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "hosts"), str(Path(__file__).parents[2] / "tools")]
from checks import Violation, check_ends, ends_of  # noqa: E402
from common import fleet_of  # noqa: E402
from fleet import linux  # noqa: E402
from job import Job  # noqa: E402
from scenario import OPTIMIZERS, program  # noqa: E402
from trials import options, reference, run, see_that_nothing_is_left  # noqa: E402

WORLDS = [(3, 1), (4, 2), (1, 1), (4, 1), (4, 2), (2, 1)]  # Ranks and hosts.
PHASES = ["compute", "sum", "stage", "commit", "update", "between"]
HANG_TIMEOUT = 1.5  # Seconds.
APART = 30  # Steps: a recovery is over before the next fault comes.
# Kind → what `holdfast explain` says of the rank after it. Who is slow for so few steps is not named.
SAID = {
    "kill": r"rank {} \(process \d+\) was killed by signal 9",
    "stop": r"rank {} \(process \d+\) was stopped by a signal and ended by its agent",
    "hang": r"rank {} \(process \d+\) was ended by its agent: the others waited for it",
    "spin": r"rank {} \(process \d+\) was ended by its agent: the others waited for it",
    "slow": r"drill: rank {} .* is to wait for 0.002 s in each step",
    "page": r"rank {} \(process \d+ on \S+\): memory errors have taken 1 page",
    "flip": r"rank {} holds other values of `",
    "cut": r"has lost its connections to other hosts",
}
FOR_S = {"slow": 0.002}
# What a job of so few ranks or hosts is spared: the refusal.
ALONE = r"rank 0 is alone: no other rank holds what it holds"
NO_LINKS = r"rank 0 has no links: the job runs on one host"
# Kind and ranks → what a job says that has to end by it, and whether all do: a lone rank can lose pages that it needs not.
ENDS = {("flip", 2): (r"No values are those of most ranks", True),
        ("page", 1): (r"the state can not be recovered: it was at step \d+.* no copy of it is left", False)}
FLIPPED = r"drill: bit \d of byte \d+ of `([^`]*)` is flipped"


def kinds_in(world, kinds):
    """Those of `kinds` that such a job is not spared."""
    workers, hosts = world
    return [kind for kind in kinds if (kind != "flip" or workers > 1) and (kind != "cut" or hosts > 1)]


def draw(rng, number, worlds, kinds):
    """Scenario `number`. Flips are repaired where most ranks agree: so never two at once."""
    workers, hosts = worlds[number % len(worlds)]
    turn = number // len(worlds)  # Few settings, so that trials share their undisturbed runs.
    scenario = {
        "workers": workers, "hosts": hosts, "fault": "drills", "optimizer": OPTIMIZERS[turn % len(OPTIMIZERS)],
        "rich": turn % 2 == 0, "spares": 1, "batch": 16, "steps": 300, "clip": 0, "drills": [],
    }
    step = 0
    for _ in range(rng.randrange(2, 6)):
        step += rng.randrange(APART, 54)  # The last one comes before the job's end.
        kind = rng.choice(kinds_in((workers, hosts), kinds))
        # A bit that flips at another time may be in a step's sums before ranks are compared, or vanish in its update.
        phase = "between" if kind == "flip" else rng.choice(PHASES)
        scenario["drills"].append({"kind": kind, "rank": rng.randrange(workers), "step": step, "phase": phase})
        if kind == "flip" and workers == 2:
            break  # It ends the job.
    return scenario


def inject(arguments, job, drill, *more):
    """Asks for one fault. False: it is refused. The rank's process may be being replaced."""
    seconds = ["--for", FOR_S[drill["kind"]]] if drill["kind"] in FOR_S else []
    code, drill["said"] = job.ask(arguments.bin / "holdfast", "inject", drill["kind"], "--job", job.name, "--rank", drill["rank"],
                                  "--at-step", drill["step"], "--phase", drill["phase"], *seconds, *more)
    return code == 0


def see_that_it_is_spared(arguments, job, scenario):
    """Faults that this job could not repair are refused, by name."""
    refused = {"cut": NO_LINKS} if scenario["hosts"] == 1 else {}
    if scenario["workers"] == 1:
        refused["flip"] = ALONE
    for kind, why in refused.items():
        drill = {"kind": kind, "rank": 0, "step": 0, "phase": "between"}
        if inject(arguments, job, drill) or not re.search(why, drill["said"]):
            raise Violation(f"'{kind}' was not refused, or not because '{why}': {drill['said']}")


def have_all_come(arguments, job, scenario):
    """Returns the faults that came."""
    done = []
    for drill in scenario["drills"]:
        if done:
            drill["step"] = max(drill["step"], done[-1]["step"] + APART)
        # Not all at once: the one before must have come, for a replaced process forgets what was ordered.
        if not job.until(lambda t, d=drill: t.newest_step() >= d["step"] - 20, what=f"step {drill['step'] - 20}"):
            break
        if not done:
            see_that_it_is_spared(arguments, job, scenario)
        # Nobody waits for a lone rank.
        waits = drill["kind"] in ("hang", "spin") and scenario["workers"] == 1
        seconds = ["--for", 0.2] if waits else []
        came = inject(arguments, job, drill, *seconds)
        while not came and drill["step"] + APART < scenario["steps"]:
            if "already" in drill["said"]:  # The command was slow.
                drill["step"] += APART
            elif "does not train" not in drill["said"]:
                raise Violation(f"refused: {drill} ({scenario})")
            # Else the rank's process is being replaced.
            elif not job.until(lambda t, n=job.trace.newest_step(): t.newest_step() > n, what="the next step"):
                break
            came = inject(arguments, job, drill, *seconds)
        if came:
            done.append(drill)
            job.until(lambda t, d=drill: t.newest_step() > d["step"] + 1, what=f"the step after {drill}")
    return done


def see_that_all_is_told(scenario, done, told):
    """Each fault that came is in the words of `holdfast explain`, as often as it came."""
    wanted = Counter()
    for drill in done:
        if scenario["workers"] > 1 or drill["kind"] not in ("hang", "spin"):
            wanted[SAID[drill["kind"]].format(drill["rank"])] += 1
    for words, times in wanted.items():
        if len(re.findall(words, told)) < times:
            raise Violation(f"'{words}' was not told {times} times ({scenario}):\n{told}")


def trial(arguments, number, path):
    """Runs one trial. Returns its line of the journal. Raises a Violation or a TimeoutError."""
    scenario = draw(random.Random(f"{arguments.seed}-{number}"), number, arguments.worlds, arguments.kinds)
    final, _, ends = reference(arguments, scenario)
    env = {"HOLDFAST_DIGEST_EVERY": "1", "HOLDFAST_ALLOW_INJECT": "1", "HOLDFAST_HANG_TIMEOUT": str(HANG_TIMEOUT), "HOLDFAST_REHEARSALS": "0"}
    fleet = arguments.fleet if scenario["hosts"] > 1 else None
    with Job(arguments.bin, path, program(arguments, scenario, path / "final"), scenario["workers"], scenario["spares"],
             env=env, fleet=fleet) as job:
        done = have_all_come(arguments, job, scenario)
        code = job.wait()
    logs = "".join(log.read_text(errors="replace") for log in (path / "log").glob("*.log"))
    words, must_end = ENDS.get((done[-1]["kind"], scenario["workers"]), (None, False)) if done else (None, False)
    ended = code != 0 and words is not None and re.search(words, job.text()) is not None
    if must_end and not ended or code != 0 and not ended:
        raise Violation(f"exit code {code} ({scenario}):\n{job.text()}")
    if not ended:
        check_ends(ends_of(path / "log"), scenario, ends)
        if (path / "final").read_bytes() != final:
            raise Violation(f"the final state differs ({scenario})")
        see_that_all_is_told(scenario, done, job.ask(arguments.bin / "holdfast", "explain", path / "log")[1])
    see_that_nothing_is_left(job)
    return {"ended": ended, "world": f"{scenario['workers']} on {scenario['hosts']}", "faults": done, "flipped": re.findall(FLIPPED, logs)}


def fleet_for(arguments):
    """Two hosts, or None: they can not be had, and that is known."""
    if why := linux.lacking():
        if os.environ.get("HOLDFAST_TEST_WITHOUT_HOSTS") != "1":
            sys.exit(f"no hosts: {why}")
        print(f"not run: trials on two hosts: {why}")
        return None
    return fleet_of(2, arguments.bin)


def main():
    parser = options(__doc__, "faults", 60)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(SAID), help="only these, with commas between")
    arguments = parser.parse_args()
    if unknown := set(arguments.kinds) - set(SAID):
        parser.error(f"--kinds: {', '.join(unknown)}; there are {', '.join(SAID)}")
    # Else a lone rank has several threads, which wait for each other on a busy machine.
    os.environ["OMP_NUM_THREADS"] = "1"
    began = time.monotonic()
    with ExitStack() as stack:
        arguments.fleet = fleet_for(arguments)
        if arguments.fleet is not None:
            stack.enter_context(arguments.fleet)
        arguments.worlds = [world for world in WORLDS if (world[1] == 1 or arguments.fleet) and kinds_in(world, arguments.kinds)]
        if not arguments.worlds:
            sys.exit("none of these faults can come here")
        trials = run(arguments, trial)
    failures = sum("violation" in each for each in trials)
    made = [each for each in trials if each.get("faults")]
    done = [drill for each in made for drill in each["faults"]]
    print(f"drills: {len(done)} faults of seed {arguments.seed} in {len(made) + failures} jobs, {failures} violations, "
          f"{time.monotonic() - began:.0f} s: " + json.dumps({
              "kinds": Counter(d["kind"] for d in done), "phases": Counter(d["phase"] for d in done),
              "worlds": Counter(each["world"] for each in made), "ended by name": sum(each["ended"] for each in made),
              "flipped": Counter(name for each in made for name in each["flipped"])}))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
