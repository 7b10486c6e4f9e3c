"""Measure kill -> all ranks stepping for a PyTorch program, beside PyTorch's own means.

    python bench/pytorch_recovery.py [--kills 5] [--ranks 2] [--loader-workers 0] [--width 512]
        [--only holdfast] [--fault kill|stop|scheduler] [--spares all|1|0] [--torchft PYTHON]

Kills with SIGKILL, at random instants, one rank after the other: under holdfast with a ready spare
for each rank, with one for any, and without one, under torchrun (a checkpoint after every step),
and under torchft if a Python that has it is named. Then the same with SIGSTOP in its place, and
with the scheduler killed before each rank, under holdfast alone. Prints one line of JSON per case,
milliseconds as [median, least, greatest]:

    start       from the launcher's start to a step of all ranks
    all         from the kill until all ranks, the killed one's successor among them, have stepped
    survivors   from the kill until the others have gone on (torchft does not wait for the lost one)
    phases      of all, in the successor: what it had done when (medians)
    step        of the healthy job
    scheduler   from its death until another one serves: the steps in this time, their greatest
                pause, that of as long a time before, and the ratio of the median steps
    memory_MB   of a rank, shared pages divided by their users (Pss)
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "chaos"))
from job import Trace, free_port  # noqa: E402

PROGRAM = str(HERE / "pytorch_training.py")
MARK = "HOLDFAST_BENCH_RUN"
LIMIT_S = 300  # For each wait. The start of torchft takes minutes on a busy machine.
Event = dict[str, Any]


class Run:
    """The processes of one job, and what they have written so far."""

    def __init__(self, folder: Path, commands: list[list[str]], more: list[dict[str, str]]) -> None:
        self.folder = folder
        self._trace = Trace(folder)
        self._mark = f"{MARK}={os.getpid()}-{folder.name}"
        environment = {**os.environ, **dict([self._mark.split("=")]), "OMP_NUM_THREADS": "1"}
        environment["HOLDFAST_TRACE"] = str(folder)
        self.began = time.monotonic_ns()
        with open(folder / "output.txt", "wb") as output:
            self.launchers = [
                subprocess.Popen(
                    command, env={**environment, **own}, stdout=output, stderr=output, cwd=folder
                )
                for command, own in zip(commands, more)
            ]

    def poll(self) -> list[Event]:
        """Read what was added; return it."""
        found: list[Event] = self._trace.poll()
        return found

    def of(self, name: str, after: int = 0) -> list[Event]:
        """Return the program's own or the library's events of a name."""
        return [e for e in self._trace.events(name) if e["t_ns"] > after]

    def steps(self, after: int = 0) -> list[Event]:
        """Return the program's own step events."""
        return [e for e in self.of("step", after) if "generation" not in e]

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Wait for a condition that is not false, and return it."""
        end = time.monotonic() + LIMIT_S
        while True:
            self.poll()
            if found := condition():
                return found
            if time.monotonic() > end or any(p.poll() is not None for p in self.launchers):
                text = (self.folder / "output.txt").read_text(errors="replace")[-3000:]
                raise RuntimeError(f"{what} did not come within {LIMIT_S} s\n{text}")
            time.sleep(0.1)  # The traces have the times. More looks would take a core from the job.

    def _processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    if f"{self._mark}\0".encode() in (entry / "environ").read_bytes():
                        found.append(int(entry.name))
                except OSError:
                    continue
        return found

    def stop(self) -> None:
        """End all processes: the launchers by SIGTERM, whatever is left by SIGKILL."""
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.terminate()
        for launcher in self.launchers:
            try:
                launcher.wait(20)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
        for pid in self._processes():
            os.kill(pid, signal.SIGKILL)


def case_of(how: str, spares: int | str, options: argparse.Namespace, folder: Path) -> Run:
    """Start a job."""
    program = [PROGRAM, how, str(folder), str(options.loader_workers), str(options.width)]
    ranks = str(options.ranks)
    restarts = ["--max-restarts", str(options.kills + 1)]
    if how == "holdfast":
        command = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", ranks]
        return Run(folder, [[*command, *restarts, "--spares", str(spares), *program]], [{}])
    run = ["-m", "torch.distributed.run", "--monitor-interval=0.02", "--shutdown-timeout=1"]
    if how == "torchrun":
        own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # Without it 2.13 hangs after a death.
        command = [sys.executable, *run, "--standalone", "--nproc-per-node", ranks, *restarts]
        return Run(folder, [[*command, *program]], [own])
    port = free_port()
    commands = [
        [
            *(str(Path(options.torchft).parent / "torchft_lighthouse"), f"--bind=127.0.0.1:{port}"),
            *("--min_replicas=1", "--heartbeat_timeout_ms=500", "--join_timeout_ms=500"),
            "--quorum_tick_ms=10",
        ]
    ]
    more: list[dict[str, str]] = [{}]
    for rank in range(options.ranks):
        commands.append(
            [
                *(options.torchft, *run, "--nnodes=1", "--nproc-per-node=1", *restarts),
                *(f"--master-port={free_port()}", *program),
            ]
        )
        more.append(
            {
                "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
                "REPLICA_GROUP_ID": str(rank),
                "BENCH_RANKS": ranks,
            }
        )
    return Run(folder, commands, more)


def alive(pid: int) -> bool:
    """Whether a process lives."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def waiting_spare(run: Run) -> list[int]:
    """Return the spares that are ready, and wait for a rank."""
    promoted = {e["pid"] for e in run.of("promoted")}
    return [e["pid"] for e in run.of("waiting") if e["pid"] not in promoted and alive(e["pid"])]


def newest(run: Run) -> dict[int, int]:
    """Return the process that has each rank."""
    return {e["rank"]: e["pid"] for e in sorted(run.steps(), key=lambda e: e["t_ns"])}


def all_stepped(run: Run, victim: int, killed: int, at: int, ranks: int) -> dict[int, Event] | None:
    """Return each rank's first step with the victim's successor; None: not all have one yet."""
    mine = [e for e in run.steps(at) if e["rank"] == victim and e["pid"] != killed]
    if not mine:
        return None
    first = min(mine, key=lambda e: e["t_ns"])
    since = next(e["t_ns"] for e in run.of("state") if e["pid"] == first["pid"])
    found: dict[int, Event] = {victim: first}
    for e in run.steps(since):
        if e["step"] >= first["step"] and e["rank"] != victim:
            found.setdefault(e["rank"], e)
    return found if len(found) == ranks else None


def went_on(run: Run, pid: int, at: int, end: int) -> int:
    """Return when a process ended its longest pause after the kill, which need not be the first."""
    times = sorted(e["t_ns"] for e in run.steps() if e["pid"] == pid and e["t_ns"] <= end)
    after = [(b - a, b) for a, b in itertools.pairwise(times) if b > at]
    return max(after)[1] if after else end


def healthy_steps(run: Run, ranks: int) -> None:
    """Wait for some healthy steps, then until a random instant of a step."""
    mark = run.steps()[-1]["t_ns"]
    run.until(lambda: len(run.steps(mark)) > 20 * ranks, "healthy steps")
    time.sleep(random.uniform(0, 0.03))


def schedulers(run: Run) -> list[Event]:
    """Return the start events of all schedulers of the job."""
    return [e for e in run.of("start") if e.get("role") == "scheduler"]


def pauses_of(run: Run, rank: int, begin: int, end: int) -> list[float]:
    """Return the milliseconds before each of a rank's steps in an interval."""
    times = sorted(e["t_ns"] for e in run.steps() if e["rank"] == rank)
    return [(b - a) / 1e6 for a, b in itertools.pairwise(times) if begin < b <= end]


def kill_scheduler(run: Run, ranks: int) -> dict[str, Any]:
    """Kill the scheduler, wait until another one serves, and compare the steps meanwhile."""
    healthy_steps(run, ranks)
    at = time.monotonic_ns()
    os.kill(schedulers(run)[-1]["pid"], signal.SIGKILL)
    served = run.until(lambda: [e for e in schedulers(run) if e["t_ns"] > at], "a scheduler")
    back = served[0]["t_ns"]
    run.until(lambda: run.steps(back), "a step after it")
    before = [p for r in range(ranks) for p in pauses_of(run, r, 2 * at - back, at)]
    during = [p for r in range(ranks) for p in pauses_of(run, r, at, back)]
    return {
        "away": (back - at) / 1e6,
        "steps": len(during) / ranks,
        "longest": max(during, default=(back - at) / 1e6),
        "longest_before": max(before),
        "ratio": statistics.median(during or [(back - at) / 1e6]) / statistics.median(before),
    }


def kill_once(run: Run, victim: int, ranks: int, fault: str) -> dict[str, Any]:
    """Kill or stop a rank at a random instant and wait for its successor."""
    pids = newest(run)
    outage = {}
    if fault == "scheduler":
        outage = kill_scheduler(run, ranks)
        os.kill(schedulers(run)[-1]["pid"], signal.SIGKILL)  # Kill it again, right before the rank.
    else:
        healthy_steps(run, ranks)
    at = time.monotonic_ns()
    os.kill(pids[victim], signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
    found = run.until(
        lambda: all_stepped(run, victim, pids[victim], at, ranks), "a step of all ranks"
    )
    before = max(e["step"] for e in run.steps() if e["t_ns"] <= at)
    successor = found[victim]["pid"]
    phases = {}
    for e in run.poll():
        mine = e["pid"] == successor or e["event"] in ("fault", "stop", "plan", "promote", "spawn")
        if mine and at < e["t_ns"] <= found[victim]["t_ns"] and e["event"] != "say":
            phases.setdefault(e["event"], (e["t_ns"] - at) / 1e6)
    end = max(e["t_ns"] for e in found.values())
    gone_on = [went_on(run, pids[r], at, end) for r in range(ranks) if r != victim]
    return {
        "all": (end - at) / 1e6,
        "survivors": (max(gone_on, default=at) - at) / 1e6,
        # The step under way may still have been done after the kill. Then no step is lost.
        "lost": max(0, before + 1 - found[victim]["step"]),
        "phases": phases,
        "outage": outage,
    }


def memory(run: Run) -> float:
    """Return the memory of the rank that has most, in MB."""
    found = []
    for pid in newest(run).values():
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                found.append(int(line.split()[1]) / 1024)
    return max(found)


def row(values: list[float]) -> list[float]:
    """Return median, least and greatest."""
    return [round(v, 1) for v in (statistics.median(values), min(values), max(values))]


def measure(how: str, fault: str, spares: int | str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one case."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir="/dev/shm") as name:
        run = case_of(how, spares, options, Path(name))
        try:
            run.until(
                lambda: len({e["rank"] for e in run.steps()}) == options.ranks, "the first step"
            )
            firsts: dict[int, int] = {}
            for e in run.steps():
                firsts.setdefault(e["rank"], e["t_ns"])
            kills = []
            used = 0.0
            for k in range(options.kills):
                ready = options.ranks if spares == "all" else int(spares)
                run.until(lambda: len(waiting_spare(run)) >= ready, "a spare that is ready")
                if not used:
                    used = memory(run)
                kills.append(kill_once(run, k % options.ranks, options.ranks, fault))
        finally:
            run.stop()
        of_rank = sorted(e["t_ns"] for e in run.steps() if e["rank"] == 0)
        names = list(dict.fromkeys(n for k in kills for n in k["phases"]))
        phases = {
            n: round(statistics.median(k["phases"][n] for k in kills if n in k["phases"]), 1)
            for n in names
        }
        pauses = [(b - a) / 1e6 for a, b in itertools.pairwise(of_rank)]
        outages = [k["outage"] for k in kills if k["outage"]]
        return {
            "how": how,
            "fault": fault,
            "ranks": options.ranks,
            "spares": spares,
            "kills": options.kills,
            "start": round((max(firsts.values()) - run.began) / 1e6),
            "all": row([k["all"] for k in kills]),
            "survivors": row([k["survivors"] for k in kills]),
            "steps_lost": sorted(k["lost"] for k in kills),
            "phases": dict(sorted(phases.items(), key=lambda item: item[1])),
            "step": round(statistics.median(pauses), 2),
            "scheduler": {n: row([o[n] for o in outages]) for o in outages[:1] for n in o},
            "memory_MB": round(used),
            "load": [round(v, 1) for v in os.getloadavg()],
        }


def main() -> None:
    """Measure all cases and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--only", choices=["holdfast", "torchrun", "torchft"])
    parser.add_argument("--fault", choices=["kill", "stop", "scheduler"])
    parser.add_argument("--spares", type=lambda s: int(s) if s.isdigit() else s)
    parser.add_argument("--torchft", metavar="PYTHON", help="one that has torchft and torch")
    options = parser.parse_args()
    cases: list[tuple[str, str, int | str]] = [("holdfast", "kill", "all")]
    cases += [("holdfast", "kill", 1), ("holdfast", "kill", 0), ("torchrun", "kill", 0)]
    cases += [("torchft", "kill", 0)] if options.torchft else []
    cases += [("holdfast", "stop", 1), ("holdfast", "stop", 0), ("torchrun", "stop", 0)]
    cases += [("holdfast", "scheduler", 1), ("holdfast", "scheduler", 0)]
    for how, fault, spares in cases:
        wanted = ((options.only, how), (options.fault, fault), (options.spares, spares))
        if all(given in (None, value) for given, value in wanted):
            print(json.dumps(measure(how, fault, spares, options)), flush=True)


if __name__ == "__main__":
    main()
