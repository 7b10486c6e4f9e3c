"""Compares a run with the undisturbed one: the differences, their first step, and their cause."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast.verify import _faults, _files, _prints, _tables
from holdfast.verify._culprit import Remembered, Source, culprits
from holdfast.verify._culprit import compare as compare_memory
from holdfast.verify._launch import Outcome
from holdfast.verify._options import Options
from holdfast.verify._places import IN_STEP, Drill, Kill
from holdfast.verify._records import Rank, Record
from holdfast.verify._served import FOLDER

_CALLBACK: Final = "callback "  # Begins the names of what a program's own callbacks hold.
_FLIP_LATE: Final = 2  # Steps from a flip's order to the step in which it comes, at most.


@dataclass(frozen=True)
class Difference:
    """Something that differs."""

    kind: str  # state, table, print, file, memory, end, fault
    step: int  # The first step after which it differs.
    rank: int
    name: str
    text: str  # For people.
    culprits: tuple[Remembered, ...] = ()


@dataclass
class Noise:
    """The differences between two undisturbed runs, which do not count."""

    masks: _prints.Masks = field(default_factory=_prints.Masks)
    names: set[tuple[int, str]] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    tables: set[str] = field(default_factory=set)
    kept: set[str] = field(default_factory=set)  # By callbacks: it may be a time.

    def learn(self, one: Outcome, other: Outcome, options: Options) -> list[str]:
        """Note everything that differs; say which name of State differs first, if any does."""
        self.masks.learn(one.record, other.record)
        for thing in compare_memory(one.record, other.record):
            self.names.add((thing.rank, thing.name))
        for filed in _files.compare(one.files, other.files, options.compare, set()):
            self.files.add(filed.name)
        self.tables.update(name for name, _ in _tables_that_differ(one, other))
        self.kept.update(_varying(one.record, other.record))
        first = _states(one.record, other.record, ignored=self.kept)
        return [f"after step {first.n} on rank {first.rank}: `{first.names[0]}`"] if first else []


@dataclass(frozen=True)
class _First:
    n: int
    rank: int
    names: list[str]


def _varying(one: Record, other: Record) -> Iterator[str]:
    """Yield the names of what callbacks hold and two undisturbed runs do not agree on."""
    for number, rank in other.ranks.items():
        was = dict(one.ranks.get(number, Rank()).states)
        for n, state in rank.states:
            before = was.get(n, state)
            yield from (m for m in state if m.startswith(_CALLBACK) and state[m] != before.get(m))


def _states(
    clean: Record, other: Record, drills: Sequence[Drill] = (), ignored: Container[str] = ()
) -> _First | None:
    """Return the first step after which any rank's State differs."""
    found: list[_First] = []
    flips = {drill.rank: drill.done for drill in drills if drill.kind == "flip"}
    both = [(number, clean.ranks.get(number, Rank()), rank) for number, rank in other.ranks.items()]
    noted = [(number, a.states, b.states) for number, a, b in both]
    noted += [(number, a.pushes, b.pushes) for number, a, b in both]
    for number, mine, theirs in noted:
        mine, theirs = (
            [(n, {m: d for m, d in state.items() if m not in ignored}) for n, state in states]
            for states in (mine, theirs)
        )
        was, now = dict(mine), dict(theirs)
        for n, state in sorted(theirs, key=lambda pair: pair[0]):
            before = was.get(n)
            if before is not None and before != state:
                # A flipped bit is repaired before the next step. It comes in the step after its
                # order, or in the one after that.
                is_flip = 0 < n - flips.get(number, n) <= _FLIP_LATE and n + 1 in now
                if is_flip and now[n + 1] == was.get(n + 1):
                    continue
                names = [m for m in {**before, **state} if _differs(m, before, state)]
                if names:
                    found.append(_First(n, number, names))
                    break
    return min(found, key=lambda first: (first.n, first.rank), default=None)


def _differs(name: str, before: Mapping[str, str], state: Mapping[str, str]) -> bool:
    if name.startswith(_CALLBACK) and (name not in before or name not in state):
        return False  # A process that has just got its State does not know its callbacks yet.
    return before.get(name) != state.get(name)


def compare(
    clean: Outcome, other: Outcome, noise: Noise, options: Options, source: Source
) -> list[Difference]:
    """Return all differences, the gravest first."""
    found: list[Difference] = []
    if other.hung or other.code != clean.code:
        found.append(_ended(clean, other, options))
    things = [
        thing
        for thing in compare_memory(clean.record, other.record)
        if (thing.rank, thing.name) not in noise.names
    ]
    found += [_not_named(drill) for drill in other.order.drills if _is_secret(drill, other)]
    first = _states(clean.record, other.record, other.order.drills, noise.kept)
    if first is not None:
        blame = culprits(things, source, first.n)
        more = f" and {len(first.names) - 1} more" if len(first.names) > 1 else ""
        text = f"step {first.n}, rank {first.rank}: {_state(first.names[0])}{more}"
        found.append(
            Difference(
                "state", first.n, first.rank, first.names[0], text + _because(blame), tuple(blame)
            )
        )
    elif not found and clean.record.steps != other.record.steps:
        text = f"{other.record.steps} steps were made, undisturbed {clean.record.steps}"
        found.append(Difference("end", other.record.steps, 0, "steps", text))
    for name, how in _tables_that_differ(clean, other):
        if name not in noise.tables:
            blame = culprits(things, source, clean.record.steps)
            text = f"after the last step table `{name}` {how}{_because(blame)}"
            found.append(Difference("table", clean.record.steps, 0, name, text, tuple(blame)))
    for printed in _prints.compare(clean.record, other.record, noise.masks):
        blame = culprits(things, source, printed.n, printed.source)
        lines = [f"{_short(path, clean)}, line {line}" for path, line in printed.source]
        where = f"{lines[0]} (for {lines[1]})" if len(lines) > 1 else lines[0]
        where = where if printed.source[0][1] else "rank 0"
        text = f"{where} printed {_words(printed)}{_because(blame)}"
        found.append(Difference("print", max(0, printed.n), 0, where, text, tuple(blame)))
    for filed in _files.compare(clean.files, other.files, options.compare, noise.files):
        blame = culprits(things, source, clean.record.steps)
        text = f"file {filed.name} {filed.how}{_because(blame)}"
        found.append(Difference("file", clean.record.steps, 0, filed.name, text, tuple(blame)))
    named = {thing.name for difference in found for thing in difference.culprits}
    for thing in source.carried(things, options.ignore):
        if thing.name not in named:
            text = f"step {thing.step}, rank {thing.rank}: {_was(thing)}: it is not in State"
            found.append(Difference("memory", thing.step, thing.rank, thing.name, text, (thing,)))
    return found


def _tables_that_differ(clean: Outcome, other: Outcome) -> list[tuple[str, str]]:
    """Return the tables whose rows differ at the end of two runs that have made the same steps."""
    folders = clean.folder / FOLDER, other.folder / FOLDER
    if other.code != 0 or clean.record.steps != other.record.steps or not folders[0].exists():
        return []
    return _tables.differing(*folders)


def _state(name: str) -> str:
    return f"{name} is another one" if " " in name else f"State holds another `{name}`"


def _ended(clean: Outcome, other: Outcome, options: Options) -> Difference:
    how = (
        f"no step was made for {options.patience_s:.0f} s, so the run was ended"
        if other.hung
        else f"the exit code was {other.code}, undisturbed {clean.code}"
    )
    return Difference("end", other.record.steps, 0, "exit", f"{how}\n{other.tail()}")


def _is_secret(drill: Drill, run: Outcome) -> bool:
    return _faults.results([drill], run.folder)[drill.number] == _faults.NOT_NAMED


def _not_named(drill: Drill) -> Difference:
    text = f"{_faults.in_words(drill)} came, and the job has not named it"
    return Difference("fault", drill.done + 1, drill.rank, drill.kind, text)


def _because(blame: Sequence[Remembered]) -> str:
    if not blame:
        return " (no variable was found that it comes from)"
    return (
        ": "
        + "; ".join(f"{_was(thing)}" for thing in blame)
        + (": it is not in State" if len(blame) == 1 else ": they are not in State")
    )


def _was(thing: Remembered) -> str:
    plain, _, place = thing.name.partition(" (")
    where = f", {place.rstrip(')')}," if place else ""
    if "#" in thing.was or "#" in thing.now:
        return f"`{plain}`{where} held something else"
    return f"`{plain}`{where} was {thing.was}, then {thing.now}"


def _words(printed: _prints.Printed) -> str:
    if not printed.was:
        return f"nothing, then {printed.now!r}"
    if not printed.now:
        return f"{printed.was!r}, then nothing"
    was, now = _prints.differing(printed.was, printed.now)
    return (
        f"{was}, then {now}"
        if (was, now) != (printed.was, printed.now)
        else f"{was!r}, then {now!r}"
    )


def _short(path: str, clean: Outcome) -> str:
    """Return a file's name as the user knows it, without the folder of the copy."""
    work = f"{clean.folder.parent}/work/"
    return path.removeprefix(work) if path.startswith(work) else path


def blamed(kills: Sequence[Kill], differences: Sequence[Difference]) -> Kill | None:
    """Return the last kill before the first difference."""
    steps = [d.step for d in differences]
    steps += [thing.step for d in differences for thing in d.culprits]
    if not kills or not steps:
        return None
    since = min(steps)
    before = [kill for kill in in_order(kills) if kill.done < since] or list(in_order(kills)[:1])
    return before[-1]


def in_order(kills: Sequence[Kill]) -> list[Kill]:
    """Return kills in the order in which they come."""
    return sorted(kills, key=lambda kill: (kill.done, kill.place in IN_STEP, kill.number))
