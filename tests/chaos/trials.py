"""What all trials with real training jobs have in common: the options, the undisturbed run, the loop and its end."""
import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from checks import Violation, check_ends, check_undisturbed, ends_of
from job import Job, processes_of
from scenario import SEED, program, settings

MOST_FAILURES = 5
references = {}


def options(doc, counted, default):
    """A parser of the options; `counted`: of which as many come as are told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument(f"--{counted}", dest="goal", type=int, default=default, help=f"go on until so many {counted} have come")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="this trial alone")
    parser.add_argument("--journal", type=Path, help="go on behind the trials in this file, and add to it")
    return parser


def reference(arguments, scenario):
    """The final file, steps and ends of an undisturbed run, which is made once for each settings()."""
    key = settings(scenario)
    if key not in references:
        path = arguments.folder / f"reference-{len(references)}"
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


def see_that_nothing_is_left(job):
    """No process and no file of a job that has ended."""
    if left := processes_of(job.name):
        raise Violation(f"processes {left} are left over")
    if files := job.leftovers():
        raise Violation(f"files are left over: {files}")


def run(arguments, trial):
    """Makes trials until enough faults have come. trial(arguments, number, path) has the faults of `number` come,
    and returns its line of the journal; it raises a Violation or a TimeoutError. Returns all lines; those of failures have a "violation"."""
    arguments.bin, arguments.data = arguments.bin.resolve(), arguments.data.resolve()
    # In /var/tmp, which hosts of namespaces share.
    arguments.folder = Path(tempfile.mkdtemp(prefix="holdfast-trials-", dir="/var/tmp"))
    trials = []
    if arguments.journal and arguments.journal.exists():
        trials = [json.loads(line) for line in arguments.journal.read_text(encoding="utf-8").splitlines()]
    number = arguments.only if arguments.only is not None else 1 + max((t["number"] for t in trials), default=-1)
    failures = 0
    while sum(len(each.get("faults", [])) for each in trials) < arguments.goal and failures < MOST_FAILURES:
        path = arguments.folder / f"trial-{number}"
        path.mkdir()
        try:
            trials.append({"number": number, **trial(arguments, number, path)})
            shutil.rmtree(path)
        except (Violation, TimeoutError) as error:
            failures += 1
            trials.append({"number": number, "violation": str(error).partition("\n")[0]})
            print(f"trial {number}: {error}\nrepeat: {' '.join(sys.argv)} --only {number}\n(logs: {path})", flush=True)
        if arguments.journal:
            with open(arguments.journal, "a", encoding="utf-8") as file:
                file.write(json.dumps(trials[-1]) + "\n")
        number += 1
        if arguments.only is not None:
            break
    if not any("violation" in each for each in trials):  # Otherwise logs and traces of failed trials stay.
        shutil.rmtree(arguments.folder)
    return trials
