"""Makes one run of the program in a copy of its working folder, and shows its progress."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from holdfast._launch import free_port
from holdfast.verify._child import VARIABLE
from holdfast.verify._faults import Orderer
from holdfast.verify._mirror import made, mirror
from holdfast.verify._note import SUFFIX
from holdfast.verify._options import Options
from holdfast.verify._outside import Killer, record
from holdfast.verify._plan import UNDISTURBED, Order
from holdfast.verify._progress import Progress
from holdfast.verify._records import Record, read

_LOOK_EVERY_S: Final = 0.2
_STRIKE_EVERY_S: Final = 0.002
_END_S: Final = 30.0
_RESTARTS: Final = 2
_LAST: Final = 6  # Lines of each log that are shown.
_REFUSAL: Final = re.compile(r"holdfast\._errors\.UserError: (.+)")
_TAIL: Final = 1 << 16
_PR_SET_PDEATHSIG: Final = 1
_PACKAGES: Final = str(Path(__file__).resolve().parents[2])
_PROGRAMS: Final = Path(__file__).resolve().parents[1] / "bin"
_INSTALLED: Final = ("site-packages", "dist-packages")


@dataclass
class Outcome:
    """The result of a run."""

    order: Order
    code: int
    hung: bool
    seconds: float
    folder: Path
    record: Record
    files: dict[str, Path] = field(default_factory=dict)  # Files that the run made.

    def refusal(self) -> str:
        """Return the sentence with which Holdfast itself refused the program, if it did."""
        for path in sorted((self.folder / "log").glob("worker_*.log")):
            found = _REFUSAL.findall(path.read_text(errors="replace"))
            if found:
                return str(found[-1])
        return ""

    def tail(self) -> str:
        """Return the last lines that the launcher and the ranks wrote."""
        said = (self.folder / "said").read_text(errors="replace").splitlines()
        lines = [f"  {line}" for line in said if line.startswith("holdfast:")][-6:]
        for path in sorted((self.folder / "log").glob("worker_*.log")):
            words = path.read_text(errors="replace").splitlines()[-_LAST:]
            lines += [f"  {path.name}: {line}" for line in words]
        return "\n".join(lines)


class Launcher:
    """Makes runs, one after the other."""

    def __init__(self, options: Options, folder: Path, progress: Progress) -> None:
        """All files of the runs go below `folder`."""
        self._options, self._folder, self._progress = options, folder, progress
        self._here = Path.cwd()
        self.links: list[str] = []
        self._elsewhere: dict[str, bool] = {}  # Files outside: new in the first run?

    @property
    def from_outside(self) -> bool:
        """Whether the program is only seen from outside: see Options.from_outside."""
        return self._options.from_outside

    def look_from_outside(self, clean: Outcome) -> None:
        """Read a Python program's steps from its trace, in `clean` and in all later runs."""
        self._options = dataclasses.replace(self._options, kind="python")
        clean.record = record(clean.folder / "trace", clean.folder / "log", ())

    def run(self, order: Order, patience_s: float) -> Outcome:
        """Make a run. It has hung if it makes no step for `patience_s` seconds."""
        folder = self._folder / order.name
        folder.mkdir()
        work = self._folder / "work"
        if work.is_symlink():
            work.unlink()
        self.links = mirror(self._here, work, self._folder)
        plan = {
            "folder": str(folder),
            "void": order.void,
            "steps": self._options.steps,
            "drills": [dataclasses.asdict(drill) for drill in order.drills],
            "job": self._job(order),
            "kills": [dataclasses.asdict(kill) for kill in order.kills],
            "elsewhere": [str(self._folder) + "/"],
        }
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "trace").mkdir()
        outside = self._options.from_outside
        orderer = Orderer(order.drills, folder, self._job(order))
        killer = Killer(folder / "trace", order.kills, orderer) if outside else None
        began = time.monotonic()
        with (
            open(folder / "said", "wb") as said,
            subprocess.Popen(
                self._command(order, folder),
                cwd=work,
                env=self._environment(order, folder),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_the_parent,
            ) as job,
        ):
            try:
                hung = self._wait(job, order, folder, patience_s, killer)
            except BaseException:
                _end(job)
                raise
        seconds = time.monotonic() - began
        made_ = killer.made if killer is not None else ()
        notes = record(folder / "trace", folder / "log", made_) if outside else read(folder)
        outcome = Outcome(order, job.returncode, hung, seconds, folder, notes)
        os.rename(work, folder / "work")  # Every run has the same path while it runs.
        work.symlink_to(self._folder / "undisturbed" / "work")  # To look up source.
        outcome.files = made(self._here, folder / "work")
        self._take_what_lies_elsewhere(outcome)
        return outcome

    def _job(self, order: Order) -> str:
        return f"verify-{os.getpid()}-{order.name}"

    def _command(self, order: Order, folder: Path) -> list[str]:
        # The limit counts restarts without a step between; all kills of a rank may be in one step.
        lost = max(Counter(k.victim for k in order.kills).values(), default=0) + len(order.drills)
        restarts = str(_RESTARTS + lost)
        ranks, command, log = str(self._options.ranks), self._options.command, folder / "log"
        servers = str(self._options.servers)
        child = ("-m", "holdfast.verify._child", *command)
        if self._options.kind == "python":
            child = command
        if self._options.kind in ("torch", "python"):
            return [
                *(sys.executable, "-m", "holdfast", "run", "--nproc-per-node", ranks),
                *("--log-dir", str(log), "--max-restarts", restarts, "--spares", order.spares),
                *("--servers", servers),
                *child,
            ]
        launcher = [str(_PROGRAMS / "msrun")]
        if self._options.kind == "mindspore":
            launcher, command = [sys.executable, "-m", "holdfast", "msrun"], ("python", *child)
        return [
            *(*launcher, f"--worker_num={ranks}", f"--master_port={free_port()}"),
            *(f"--log_dir={log}", "--join=True", f"--max_restarts={restarts}"),
            *(f"--spares={order.spares}", f"--server_num={servers}", *command),
        ]

    def _environment(self, order: Order, folder: Path) -> dict[str, str]:
        environment = dict(os.environ)
        environment[VARIABLE] = str(folder / "plan.json")
        environment["HOLDFAST_REHEARSALS"] = "0"  # verify makes its own comparisons.
        if order.drills:
            environment["HOLDFAST_JOB"] = self._job(order)
            environment["HOLDFAST_ALLOW_INJECT"] = environment["HOLDFAST_DIGEST_EVERY"] = "1"
        elif order.name != UNDISTURBED.name:  # verify itself names what drifts.
            environment.setdefault("HOLDFAST_DRIFT", "warn")
        if self._options.from_outside or order.name == UNDISTURBED.name:
            environment["HOLDFAST_TRACE"] = str(folder / "trace")
        environment.setdefault("PYTHONHASHSEED", "0")
        path = [os.path.abspath(p) for p in environment.get("PYTHONPATH", "").split(":") if p]
        if _PACKAGES not in path and os.path.basename(_PACKAGES) not in _INSTALLED:
            path.append(_PACKAGES)  # The package was imported from there.
        if path:
            environment["PYTHONPATH"] = os.pathsep.join(path)
        return environment

    def _wait(
        self,
        job: subprocess.Popen[bytes],
        order: Order,
        folder: Path,
        patience_s: float,
        killer: Killer | None,
    ) -> bool:
        """Wait for the job to end. Return whether it had to be forced to end."""
        size, since = -1, time.monotonic()
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(_LOOK_EVERY_S if killer is None else _STRIKE_EVERY_S)
                return False
            if killer is not None:
                killer.look()
            notes = list(folder.glob(f"rank-*{SUFFIX}"))
            now = sum(path.stat().st_size for path in notes) + (killer.step if killer else 0)
            if now != size:
                size, since = now, time.monotonic()
                steps = max(map(_steps_in, notes), default=killer.step if killer else 0)
                self._progress.show(order.title, steps)
            if time.monotonic() - since > patience_s:
                _end(job)
                return True

    def _take_what_lies_elsewhere(self, outcome: Outcome) -> None:
        """Copy the files that the program wrote outside its folder; remove those that are new."""
        for rank in outcome.record.ranks.values():
            for path, new in rank.wrote.items():
                self._elsewhere.setdefault(path, new)
        for path, new in self._elsewhere.items():
            if os.path.isfile(path):
                copy = outcome.folder / "elsewhere" / path.lstrip("/")
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, copy)
                outcome.files[path] = copy
                if new:
                    os.unlink(path)


def _end_with_the_parent() -> None:
    """Have a job that was just forked end when this process ends, even if that is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _steps_in(notes: Path) -> int:
    """Return the last step that a file of notes mentions."""
    with open(notes, "rb") as file:
        file.seek(max(0, notes.stat().st_size - _TAIL))
        _, _, last = file.read().rpartition(b'{"what": "done", "n": ')
    digits = last.partition(b",")[0]
    return int(digits) if digits.isdigit() else 0


def _end(job: subprocess.Popen[bytes]) -> None:
    """End a job. It gets time to remove its own files, then it is killed."""
    job.send_signal(signal.SIGTERM)
    try:
        job.wait(_END_S)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()
