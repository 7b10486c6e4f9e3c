"""Makes all runs one after the other, compares them, and reports the result."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.verify import _compare, _faults, _outside, _report
from holdfast.verify._compare import Noise
from holdfast.verify._culprit import Source
from holdfast.verify._launch import Launcher, Outcome
from holdfast.verify._options import USAGE_EXIT, Options, parse
from holdfast.verify._plan import AGAIN, UNDISTURBED, VOID, Order, kill_runs
from holdfast.verify._progress import Progress
from holdfast.verify._records import Record
from holdfast.verify._report import Verdict
from holdfast.verify._served import FOLDER

_DIFFERS: Final = 1


def say(text: str) -> None:
    """Write a line for the user."""
    print(f"holdfast verify: {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Do what the command line says; return the exit code."""
    options = parse(sys.argv[1:] if argv is None else argv)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        return Course(options, options.keep.resolve()).run()
    signal.signal(signal.SIGTERM, _interrupt)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-verify-")).resolve()
    try:
        return Course(options, folder).run()
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _interrupt(*_: object) -> None:
    """Let SIGTERM end the job and remove the copies, as Ctrl-C does."""
    raise KeyboardInterrupt


class Course:
    """All runs of a program."""

    def __init__(self, options: Options, folder: Path) -> None:
        """Files of the runs go below `folder`."""
        self._options = options
        self._progress = Progress()
        self._launcher = Launcher(options, folder, self._progress)
        self._noise = Noise()
        self._unrepeatable: list[str] = []

    def run(self) -> int:
        """Make all runs and report the result; return the exit code."""
        clean = self._launcher_run(UNDISTURBED)
        if not clean.hung and clean.code != 0 and (sentence := clean.refusal()):
            if "needs parameter servers" in sentence and not self._options.servers:
                sentence += " (here: `holdfast verify --servers 1 ...`)"
            print(f"{' '.join(self._options.command)}: refused undisturbed: {sentence}")
            self._report([], refused=sentence, equal=False)
            return _DIFFERS
        if not self._can_be_compared_with(clean):
            return USAGE_EXIT
        record = clean.record
        self._progress.steps = record.steps
        spares, quick = self._options.spares, self._options.quick
        ranks = self._options.ranks
        servers = range(ranks, ranks + self._options.servers)
        if self._launcher.from_outside:
            orders = _outside.orders(record, spares, quick, servers)
        else:
            orders = [VOID, *kill_runs(record, spares, quick, servers)]
        orders += self._faults(record)
        self._progress.runs = 1 + len(orders)
        outcomes = [self._launcher_run(order) for order in orders]
        source = Source(sorted({p for rank in record.ranks.values() for p in rank.sources}))
        verdicts = self._verdicts(clean, outcomes, source)
        if any(verdict.differences for verdict in verdicts):
            self._progress.runs += 1
            again = self._launcher_run(AGAIN)
            if clean.record.disturbed or again.record.disturbed:
                say(
                    "a fault came by itself in an undisturbed run, so nobody knows what differs "
                    "between two of them; run verify again where the machine has more time"
                )
            else:
                self._unrepeatable = self._noise.learn(clean, again, self._options)
            verdicts = self._verdicts(clean, outcomes, source)
        return self._end(clean, verdicts)

    def _faults(self, record: Record) -> list[Order]:
        """Return the runs with faults on order, and say which kinds are left out."""
        options = self._options
        if not options.faults:
            return []
        among, without = _faults.kinds(options.kind, options.ranks)
        say(f"{options.faults} faults of --seed {options.seed}")
        for sentence in without:
            say(sentence)
        flips = "between" if options.kind == "native" else "stage"
        spares, seed = options.spares, options.seed
        return _faults.orders(record, among, options.faults, spares, seed, flips)

    def _can_be_compared_with(self, clean: Outcome) -> bool:
        """Return whether other runs can be compared with the first one. If not, say why."""
        if clean.hung or clean.code != 0:
            how = "does not end" if clean.hung else f"ends with code {clean.code}"
            say(f"the program {how} undisturbed, so nothing was verified\n{clean.tail()}")
            return False
        if not clean.record.opened and self._options.kind == "torch":
            self._launcher.look_from_outside(clean)
        if not clean.record.opened:
            say("the program keeps no state, so nothing was verified: give it a State")
            return False
        if not clean.record.steps:
            say("the program makes no step, so nothing was verified")
            return False
        pushes = any(pushed for rank in clean.record.ranks.values() for _, pushed in rank.pushes)
        if pushes and self._options.kind == "torch" and not (clean.folder / FOLDER).exists():
            say(
                "the program ends without Python's exit handlers (os._exit), so the rows of its "
                "tables could not be saved; what it pushes is compared"
            )
        for name in self._launcher.links:
            say(f"{name} is large, so all runs share it; what they write there is not compared")
        return True

    def _launcher_run(self, order: Order) -> Outcome:
        outcome = self._launcher.run(order, self._options.patience_s)
        how = f"{outcome.record.steps} steps"
        if order.kills:
            made = sum(len(rank.kills) for rank in outcome.record.ranks.values())
            how += f", {made} kills"
        if order.drills:
            how += f", {len(order.drills)} faults"
        if outcome.hung or outcome.code != 0:
            how += ", HANGS" if outcome.hung else f", exit code {outcome.code}"
        self._progress.end(order.title, outcome.seconds, how)
        return outcome

    def _unseen(self) -> str:
        """Return what the report adds if the program is only seen from outside."""
        if not self._launcher.from_outside:
            return ""
        return (
            ", as far as can be seen from outside: the loss of each step, files and printed lines"
            + (", not the rows of tables" if self._options.servers else "")
        )

    def _verdicts(
        self, clean: Outcome, outcomes: Sequence[Outcome], source: Source
    ) -> list[Verdict]:
        return [
            Verdict(o, _compare.compare(clean, o, self._noise, self._options, source))
            for o in outcomes
        ]

    def _end(self, clean: Outcome, verdicts: Sequence[Verdict]) -> int:
        """Report the result; return the exit code."""
        program = " ".join(self._options.command)
        equal = not self._unrepeatable and not any(v.differences for v in verdicts)
        few = self._options.servers
        servers = f", {few} server{'s' if few > 1 else ''}" if few else ""
        print(f"{program}: {self._options.ranks} ranks{servers}, {clean.record.steps} steps")
        print(_report.table(verdicts))
        for what in self._unrepeatable:
            print(
                f"two undisturbed runs differ, {what}. The program does not repeat itself: seed "
                "what it draws from (torch.manual_seed, or a generator that State keeps)"
            )
        if text := _report.words(verdicts):
            print(text)
        if text := _report.epochs_tried(clean.record, verdicts):
            print(text)
        if equal:
            print("all runs are equal" + self._unseen())
        steps = clean.record.steps
        self._report(verdicts, equal=equal, steps=steps, unrepeatable=self._unrepeatable)
        sys.stdout.flush()
        return 0 if equal else _DIFFERS

    def _report(self, verdicts: Sequence[Verdict], **more: Any) -> None:
        if self._options.json is not None:
            program, ranks = " ".join(self._options.command), self._options.ranks
            more["servers"] = self._options.servers
            report = _report.as_json(verdicts, program=program, ranks=ranks, **more)
            self._options.json.write_text(json.dumps(report, indent=1) + "\n")
