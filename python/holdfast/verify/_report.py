"""Reports the result: a table, the differences with names, and JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.verify import _faults
from holdfast.verify._compare import Difference, blamed, in_order
from holdfast.verify._launch import Outcome
from holdfast.verify._places import PLACES, Kill
from holdfast.verify._plan import epochs_of
from holdfast.verify._records import Record

_SHOWN: Final = 6


@dataclass
class Verdict:
    """A run and its differences."""

    outcome: Outcome
    differences: list[Difference]

    def cells(self) -> dict[int, str]:
        """Return the result of each kill, by its number."""
        made = {number for rank in self.outcome.record.ranks.values() for number in rank.kills}
        culprit = blamed(self.kills_made(), self.differences)
        found: dict[int, str] = {}
        beyond = False
        for kill in in_order(self.outcome.order.kills):
            if kill.number not in made:
                found[kill.number] = "not reached"
            elif kill == culprit:
                found[kill.number], beyond = "DIFFERS", True
            else:
                found[kill.number] = "?" if beyond else "equal"
        return found

    def faults(self) -> list[tuple[str, str]]:
        """Return the faults on order, and what became of each."""
        drills = self.outcome.order.drills
        found = _faults.results(drills, self.outcome.folder) if drills else {}
        differs = any(d.kind != "fault" for d in self.differences)
        words = {_faults.REACHED: "something DIFFERS in this run" if differs else "equal"}
        return [(_faults.in_words(d), words.get(found[d.number], found[d.number])) for d in drills]

    def kills_made(self) -> list[Kill]:
        """Return the kills that were made."""
        made = {number for rank in self.outcome.record.ranks.values() for number in rank.kills}
        return [kill for kill in self.outcome.order.kills if kill.number in made]


def table(verdicts: Sequence[Verdict]) -> str:
    """Return a table: a line for each place, a column for each rank and number of spares."""
    columns: dict[tuple[str, bool, str], dict[str, str]] = {}
    lines = []
    for verdict in verdicts:
        order = verdict.outcome.order
        cells = verdict.cells()
        for kill in order.kills:
            is_server = kill.server is not None
            column = columns.setdefault((order.spares, is_server, kill.victim), {})
            column[kill.place] = cells[kill.number]
        if order.void:
            how = "DIFFERS" if verdict.differences else "equal"
            lines.append(f"  every step void once: {how}")
    for verdict in verdicts:
        for text, result in verdict.faults():
            lines.append(f"  {text}: {result}")
    if columns:
        keys = sorted(columns)
        heads = [f"{victim}, {_spares(spares)}" for spares, _, victim in keys]
        width = max(len(head) for head in heads)
        lines.append("  " + " " * 16 + "".join(f"  {head:>{width}}" for head in heads))
        there = [p for p in PLACES if any(p in column for column in columns.values())]
        for place in there:
            cells_ = [columns[key].get(place, "-") for key in keys]
            lines.append(f"  {place:16}" + "".join(f"  {cell:>{width}}" for cell in cells_))
        words = {cell for column in columns.values() for cell in column.values()}
        if any("-" in (column.get(p, "-")) for column in columns.values() for p in there):
            lines.append("  -: the rank has no such place, or it was not asked for")
        if "?" in words:
            lines.append("  ?: something differed already")
    return "\n".join(lines)


def _spares(number: str) -> str:
    return {"0": "no spare", "1": "one spare"}.get(number, f"{number} spares")


def _of(kill: Kill) -> str:
    return "" if kill.server is None else f" of rank {kill.rank}"


def words(verdicts: Sequence[Verdict]) -> str:
    """Return the differences in each run, for people."""
    lines = []
    said: set[str] = set()
    for verdict in verdicts:
        new = [d for d in verdict.differences if d.text not in said]
        said |= {d.text for d in new}
        if not verdict.differences:
            continue
        lines.append(f"{verdict.outcome.order.title}:")
        culprit = blamed(verdict.kills_made(), verdict.differences)
        if culprit is not None:
            lines.append(
                f"  first after the kill of {culprit.victim} ({culprit.place}"
                f"{_of(culprit)}, with {culprit.done} steps done)"
            )
        lines += [f"  {difference.text}" for difference in new[:_SHOWN]]
        if len(new) > _SHOWN:
            lines.append(f"  and {len(new) - _SHOWN} more (--json has all)")
        if not new:
            lines.append("  the same as above")
    return "\n".join(lines)


def epochs_tried(record: Record, verdicts: Sequence[Verdict]) -> str:
    """Return a sentence on which epochs had kills; empty if there are not at least two epochs."""
    every = sorted(set(record.epochs.values()))
    tried = {e for verdict in verdicts for e in epochs_of(record, verdict.kills_made())}
    if len(every) < 2:
        return ""
    missed = [str(epoch) for epoch in every if epoch not in tried]
    if not missed:
        return f"each of the {len(every)} epochs had a kill"
    return f"{len(tried)} of {len(every)} epochs had a kill, not {', '.join(missed)}"


def as_json(verdicts: Sequence[Verdict], **more: Any) -> dict[str, Any]:
    """Return the whole report for programs."""
    runs = []
    for verdict in verdicts:
        outcome, cells = verdict.outcome, verdict.cells()
        runs.append(
            {
                "name": outcome.order.name,
                "title": outcome.order.title,
                "void": outcome.order.void,
                "spares": outcome.order.spares,
                "exit_code": outcome.code,
                "hung": outcome.hung,
                "seconds": round(outcome.seconds, 1),
                "steps": outcome.record.steps,
                "kills": [
                    {**dataclasses.asdict(kill), "result": cells[kill.number]}
                    for kill in outcome.order.kills
                ],
                "faults": [{"fault": text, "result": result} for text, result in verdict.faults()],
                "differences": [dataclasses.asdict(d) for d in verdict.differences],
            }
        )
    return {**more, "runs": runs}
