"""Compares the output of two runs, by the line of source that printed it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.verify._records import Line, Record

_TOKEN: Final = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?|\w+|\s+|.")
# What MindSpore logs has times and process numbers, and is not the program's.
_LOGGED: Final = re.compile(r"\[(CRITICAL|ERROR|WARNING|INFO|DEBUG)\] \w+\(\d+:\d+,")
Source = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Printed:
    """A difference in what one line of source printed."""

    source: Source
    n: int  # Steps that were done.
    was: str  # Empty: nothing was printed.
    now: str


def _by_source(record: Record) -> dict[Source, list[Line]]:
    found: dict[Source, list[Line]] = defaultdict(list)
    for line in record.ranks[0].printed if 0 in record.ranks else ():
        # A successor may print anything on its way to State.
        if (line.n >= 0 or line.life == 1) and not _LOGGED.match(line.text):
            found[line.source].append(line)
    return found


class Masks:
    """The parts of lines that may differ, since they differ between two undisturbed runs."""

    def __init__(self) -> None:
        """Begin with nothing that may differ."""
        self._places: dict[Source, set[int]] = {}
        self._all: set[Source] = set()

    def learn(self, one: Record, other: Record) -> None:
        """Take the parts that differ between two undisturbed runs."""
        mine, theirs = _by_source(one), _by_source(other)
        for source in mine.keys() | theirs.keys():
            a = [_TOKEN.findall(line.text) for line in mine.get(source, ())]
            b = [_TOKEN.findall(line.text) for line in theirs.get(source, ())]
            if len(a) != len(b) or any(len(x) != len(y) for x, y in zip(a, b)):
                self._all.add(source)
                continue
            places = {i for x, y in zip(a, b) for i, (s, t) in enumerate(zip(x, y)) if s != t}
            if places:
                self._places[source] = places

    def ignores(self, source: Source) -> bool:
        """Return whether all output of a line of source may differ."""
        return source in self._all

    def cover(self, source: Source, text: str) -> str:
        """Return the text without the parts that may differ."""
        places = self._places.get(source)
        if not places:
            return text
        tokens = _TOKEN.findall(text)
        return "".join("*" if i in places else token for i, token in enumerate(tokens))


def compare(clean: Record, other: Record, masks: Masks) -> list[Printed]:
    """Return the first difference of each line of source, in order of steps."""
    mine, theirs = _by_source(clean), _by_source(other)
    found: list[Printed] = []
    for source, lines in mine.items():
        if masks.ignores(source):
            continue
        was = {masks.cover(source, line.text): line for line in reversed(lines)}
        now = {masks.cover(source, line.text): line for line in reversed(theirs.get(source, ()))}
        missing = _sorted(line for text, line in was.items() if text not in now)
        extra = _sorted(line for text, line in now.items() if text not in was)
        if not missing and not extra:
            continue
        first = min([*missing[:1], *extra[:1]], key=lambda line: line.n)
        a = next((line for line in missing if line.n == first.n), None)
        b = next((line for line in extra if line.n == first.n), None)
        if a is None and b is not None:  # A replay may have printed other numbers.
            a = next((line for line in lines if line.n == first.n), None)
        found.append(Printed(source, first.n, a.text if a else "", b.text if b else ""))
    return sorted(found, key=lambda printed: printed.n)


def _sorted(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: line.n)


def differing(was: str, now: str) -> tuple[str, str]:
    """Return the differing part if it is one word or number, else both texts."""
    a, b = _TOKEN.findall(was), _TOKEN.findall(now)
    if len(a) == len(b):
        pairs = [(x, y) for x, y in zip(a, b) if x != y]
        if len(pairs) == 1:
            return pairs[0]
    return was, now
