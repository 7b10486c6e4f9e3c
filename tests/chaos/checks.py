"""What must be true of a job's trace, whichever processes were killed. Each check raises a Violation."""
import re
from collections import defaultdict

from samples import wrong_samples

NOT_OF_THE_STEP = {"t_ns", "pid", "generation"}  # These may differ from the undisturbed run.


class Violation(Exception):
    """A promise that was not kept, in words."""


def steps_of(trace):
    """(rank, step) → what the step's lines say of it, a list with one entry per line."""
    made = defaultdict(list)
    for line in trace.events("step"):
        made[line["rank"], line["step"]].append({k: v for k, v in line.items() if k not in NOT_OF_THE_STEP})
    return made


def check_steps(trace, scenario, undisturbed):
    """Every rank made every step exactly once, over all processes that had the rank, from the same samples.

    For every rank and step, lines of the undisturbed run have the loss, and the digest of the samples where
    the program traces it. The loss is the same double only if samples and parameters are the same.
    """
    made = steps_of(trace)
    for (rank, step), lines in sorted(made.items()):
        if len(lines) > 1:
            raise Violation(f"rank {rank} made step {step} {len(lines)} times")
        if lines != undisturbed.get((rank, step)):
            raise Violation(f"rank {rank} made step {step} of something else: {lines[0]}, "
                            f"undisturbed {undisturbed.get((rank, step))}")
    for rank in range(scenario["workers"]):
        missing = [step for step in range(1, scenario["steps"] + 1) if (rank, step) not in made]
        # A process killed between its commit and its trace line made the step but could not say so.
        restarts = len(trace.pids_of(rank)) - 1
        if len(missing) > restarts:
            raise Violation(f"rank {rank} lost steps {missing} over {restarts} restarts")


def check_undisturbed(trace, scenario, seed, samples):
    """Every rank made each step once, together they used each sample of an epoch at most once, and left out
    less than a step: what the disturbed runs are measured by must itself be whole."""
    made = steps_of(trace)
    wanted = {(rank, step) for rank in range(scenario["workers"]) for step in range(1, scenario["steps"] + 1)}
    if set(made) != wanted or any(len(lines) != 1 for lines in made.values()):
        raise Violation("the undisturbed run did not make each step once")
    if wrong := wrong_samples(made, scenario, seed, samples):
        raise Violation(f"the undisturbed run: {wrong}")
    return made


def ends_of(log_folder):
    """rank → the lines of its processes on the state they ended with. Those of promoted spares are in their own logs."""
    ends = defaultdict(set)
    for path in log_folder.glob("*.log"):
        for rank, said in re.findall(r"^rank (\d+) of \d+: (done after step .*)$", path.read_text(errors="replace"), re.M):
            ends[int(rank)].add(said)
    return dict(ends)


def check_ends(ends, scenario, undisturbed):
    """Every rank ended with the step and the digest (parameters, optimizer, its own buffers and kept values) that it has
    in the undisturbed run; a rank that was killed at its very end may say so twice."""
    for rank in range(scenario["workers"]):
        if len(undisturbed.get(rank, ())) != 1:
            raise Violation(f"rank {rank} of the undisturbed run did not say once how it ended: {undisturbed.get(rank)}")
        if ends.get(rank) != undisturbed[rank]:
            raise Violation(f"rank {rank} ended otherwise: {sorted(ends.get(rank, ()))}, undisturbed "
                            f"{sorted(undisturbed[rank])}")


def check_generation(trace, scenario):
    """If the scheduler alone died, no rank stops: the training stays in its first generation."""
    if scenario["fault"] != "the scheduler":
        return
    later = [line for line in trace.events("step") if line["generation"] > 1]
    if later:
        raise Violation(f"the scheduler alone was killed, and the workers stopped for it: {later[0]}")


def recoveries(trace, workers):
    """(from, to) in ns: from the first sign of a fault until all ranks went on."""
    resumed = defaultdict(dict)
    for line in trace.events("resume"):
        if line["generation"] > 1 and line["rank"] >= 0:  # -1: the scheduler's own line.
            resumed[line["generation"]].setdefault(line["rank"], line["t_ns"])
    whole = sorted(max(ranks.values()) for ranks in resumed.values() if len(ranks) == workers)
    signs = sorted(line["t_ns"] for name in ("died", "fault", "stop") for line in trace.events(name))
    found, before = [], 0
    for end in whole:
        inside = [t for t in signs if before < t < end]
        if inside:
            found.append((inside[0], end))
        before = end
    return found


def in_recovery(trace, workers, kills):
    """The number of kills (with "t_ns") that came during the recovery from another."""
    spans = recoveries(trace, workers)
    return sum(any(begin < kill["t_ns"] < end for begin, end in spans) for kill in kills)
