"""Reads the notes that the processes of a run have written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.verify._note import SUFFIX

Moment = tuple[int, str]  # A step; "begins" or "done".


@dataclass
class Past:
    """A place between steps that a rank came past."""

    place: str
    done: int
    nth: int


@dataclass
class Line:
    """A line that was printed."""

    source: tuple[tuple[str, int], ...]  # File and line that printed; then its caller.
    text: str
    n: int  # Steps that were done; -1: before State.
    life: int  # Which process of the rank printed it, from 1.


@dataclass
class Rank:
    """The notes of a rank's processes, one after the other."""

    lives: int = 0
    opened: bool = False
    states: list[tuple[int, dict[str, str]]] = field(default_factory=list)
    pushes: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # To tables, by step.
    memory: list[tuple[Moment, dict[str, str]]] = field(default_factory=list)
    places: dict[int, dict[str, int]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)  # By step, if the epoch is known.
    past: list[Past] = field(default_factory=list)
    printed: list[Line] = field(default_factory=list)
    kills: list[int] = field(default_factory=list)
    voids: set[int] = field(default_factory=set)
    wrote: dict[str, bool] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)

    def take(self, note: dict[str, Any], known: dict[str, str]) -> None:
        """Take one note; `known` is the memory of this life so far."""
        what = note["what"]
        if what in ("begins", "done"):
            for name, value in note["memory"].items():
                known.pop(name, None) if value is None else known.update({name: value})
            self.memory.append(((note["n"], what), dict(known)))
        if what == "life":
            self.lives += 1
            known.clear()
        elif what in ("opened", "done"):
            self.opened = True
            self.states.append((note["n"], note["digests"]))
            if what == "done":
                self.places[note["n"]] = note["places"]
                self.pushes.append((note["n"], note.get("pushed", {})))
                if "epoch" in note:
                    self.epochs[note["n"]] = note["epoch"]
        elif what == "place":
            self.past.append(Past(note["place"], note["done"], note["nth"]))
        elif what == "print":
            source = tuple((file, line) for file, line in note["source"])
            self.printed.append(Line(source, note["text"], note["n"], self.lives))
        elif what == "kill":
            self.kills.append(note["number"])
        elif what == "void":
            self.voids.add(note["n"])
        elif what == "wrote":
            self.wrote.setdefault(note["path"], note["new"])
        elif what == "sources":
            self.sources = note["sources"]


@dataclass
class Record:
    """The notes of all ranks."""

    ranks: dict[int, Rank]

    @property
    def steps(self) -> int:
        """The number of steps that were made."""
        return max((n for rank in self.ranks.values() for n, _ in rank.states), default=0)

    @property
    def epochs(self) -> dict[int, int]:
        """The epoch of each step whose epoch is known."""
        return {n: epoch for rank in self.ranks.values() for n, epoch in rank.epochs.items()}

    @property
    def disturbed(self) -> bool:
        """Whether a step was void, or a process was replaced."""
        return any(rank.voids or rank.lives > 1 for rank in self.ranks.values())

    @property
    def opened(self) -> bool:
        """Whether the program has made a State."""
        return any(rank.opened for rank in self.ranks.values())


def read(folder: Path) -> Record:
    """Read a run's notes. A line that a kill has cut short is left out."""
    ranks: dict[int, Rank] = {}
    for path in sorted(folder.glob(f"rank-*{SUFFIX}")):
        rank = ranks[int(path.stem.partition("-")[2])] = Rank()
        known: dict[str, str] = {}
        for line in path.read_bytes().splitlines(keepends=True):
            if line.endswith(b"\n"):
                rank.take(json.loads(line), known)
    return Record(ranks)
