"""Faults on order in a run (docs/drills.md): which, where, and whether each was told of by name.

Each comes by `holdfast inject`. A run has each kind once, so what its logs say is of that one.
"""

from __future__ import annotations

import contextlib
import json
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.verify._places import Drill
from holdfast.verify._plan import Order
from holdfast.verify._records import Record

_PROGRAM: Final = Path(__file__).resolve().parents[1] / "bin" / "holdfast"
_PHASES: Final = ("compute", "sum", "stage", "commit", "update", "between")
_HANG: Final = "0.3"  # Seconds: nobody takes that for a hang.
_EACH: Final = 4  # Faults of a run.
_APART: Final = 3  # Steps from a fault to the next: a recovery, or a comparison, lies between.
_LIMIT_S: Final = 30.0
# What the rank says when it comes; if there is nothing of the kind; how the job names it.
_CAME: Final = {
    "kill": "drill: this process is killed",
    "stop": "drill: this process is stopped",
    "hang": "drill: this process hangs",
    "page": "drill: a page of memory is lost",
    "flip": "is flipped in ",
}
_NONE: Final = {
    "page": "drill: there is no whole page",
    "flip": "drill: this rank holds nothing that is compared",
}
_NAMED: Final = {
    "hang": r"drill: rank {} .* is to hang ",
    "page": r"rank {} .*memory errors have taken 1 page",
    "flip": r"rank {} holds other values of `",
}
REACHED: Final = "came"
NOT_REACHED: Final = "not reached"
NONE: Final = "there is nothing of the kind"
NOT_NAMED: Final = "NOT NAMED"


def kinds(kind: str, ranks: int) -> tuple[list[str], list[str]]:
    """Return the kinds of faults for such a program, and sentences on those that are left out."""
    found, without = ["kill", "stop", "hang"], []
    if kind == "mindspore":
        without.append("no page is lost: under MindSpore there is none to lose")
    else:
        found.append("page")
    if ranks < 3:
        without.append(
            f"no bit is flipped: {ranks} ranks have no majority that knows the right one"
        )
    else:
        found.append("flip")
    return found, without


def orders(
    record: Record,
    among: Sequence[str],
    count: int,
    spares: Sequence[str],
    seed: int,
    flips: str = "stage",
) -> list[Order]:
    """Return runs with `count` faults in all.

    `flips`: the phase of flipped bits. In C++ an update follows `stage`, which may round one away.
    """
    rng, number = random.Random(seed), 0
    found: list[Order] = []
    room = max(1, min(_EACH, len(among), (record.steps - 1) // _APART))
    while number < count:
        few = min(room, count - number)
        parts = range(few)  # Of the steps: a fault in each.
        drills = []
        for part, kind in zip(parts, rng.sample(list(among), few)):
            first = 1 + part * (record.steps - 1) // few
            last = max(first, (part + 1) * (record.steps - 1) // few - _APART)
            phase = flips if kind == "flip" else rng.choice(_PHASES)
            rank = rng.choice(sorted(record.ranks))
            drills.append(Drill(number, kind, rank, rng.randint(first, last), phase))
            number += 1
        spare = spares[len(found) % len(spares)]
        title = f"faults, run {len(found) + 1}"
        found.append(Order(f"faults-{len(found)}", title, spares=spare, drills=tuple(drills)))
    return found


class Orderer:
    """Orders a run's faults, each once, when its rank has done so many steps."""

    def __init__(self, drills: Sequence[Drill], folder: str | Path, job: str) -> None:
        """`folder`: the run's."""
        self._drills, self._folder, self._job = list(drills), Path(folder), job

    def done(self, rank: int, n: int) -> None:
        """Order what is due now that a rank has done step n."""
        for drill in [d for d in self._drills if d.rank == rank and d.done <= n]:
            self._drills.remove(drill)
            with contextlib.suppress(FileExistsError), self._answer(drill).open("x") as answer:
                words = [*("--job", self._job, "--rank", str(rank), "--phase", drill.phase)]
                words += ["--for", _HANG] if drill.kind == "hang" else []
                try:
                    subprocess.run(
                        [str(_PROGRAM), "inject", drill.kind, *words],
                        stdin=subprocess.DEVNULL,
                        stdout=answer,
                        stderr=subprocess.STDOUT,
                        timeout=_LIMIT_S,
                        check=False,
                    )
                except (OSError, subprocess.TimeoutExpired) as error:
                    answer.write(f"{error}\n")  # The program goes on: this is not its fault.

    def _answer(self, drill: Drill) -> Path:
        return self._folder / f"ordered-{drill.number}"


def results(drills: Sequence[Drill], folder: Path) -> dict[int, str]:
    """Return what became of each fault of a run, by its number."""
    logs = (folder / "log").glob("worker_*.log")
    said = "".join(path.read_text(errors="replace") for path in logs)
    told, lost = _told(folder / "log")
    found = {}
    for drill in drills:
        if _CAME[drill.kind] not in said:
            is_none = _NONE.get(drill.kind, "\0") in said
            found[drill.number] = NONE if is_none else NOT_REACHED
        elif _is_named(drill, told, lost):
            found[drill.number] = REACHED
        else:
            found[drill.number] = NOT_NAMED
    return found


def _is_named(drill: Drill, told: str, lost: set[int]) -> bool:
    if drill.kind in _NAMED:
        return re.search(_NAMED[drill.kind].format(drill.rank), told) is not None
    return drill.rank in lost


def _told(log: Path) -> tuple[str, set[int]]:
    """Return what `holdfast explain` tells of a job: its remarks, and the ranks that were lost."""
    text, lost = "", set[int]()
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        status: Any = json.loads((log / "last_status.json").read_text())
        text = "\n".join(remark["sentence"] for remark in status.get("remarks", []))
    with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
        for line in (log / "recoveries.jsonl").read_text().splitlines():
            recovery = json.loads(line)
            lost.update(recovery["ranks"])
            text += "".join(f"\n{fault['cause']}" for fault in recovery["faults"])
    return text, lost


def in_words(drill: Drill) -> str:
    """Return a fault for people."""
    at = f"after step {drill.done}" if drill.phase == "between" else f"in step {drill.done + 1}"
    return f"{drill.kind} of rank {drill.rank} ({drill.phase}, {at})"
