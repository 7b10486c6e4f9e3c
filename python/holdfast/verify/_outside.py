"""Kills programs from outside, and compares them by what their traces say about each step.

No step is made void without a kill, and no variable is named: nothing of verify runs within such a
program. Only Holdfast's library does, which writes the trace.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from holdfast.verify._faults import Orderer
from holdfast.verify._places import OUTSIDE, Kill
from holdfast.verify._plan import Order
from holdfast.verify._records import Line, Rank, Record
from holdfast.verify._served import server_of

_NUMBER: Final = re.compile(r"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf")
_EACH: Final = 4  # Kills of a rank in one run.


class Trace:
    """The trace that the processes of a run have written so far."""

    def __init__(self, folder: Path) -> None:
        """Read the files in `folder`, which HOLDFAST_TRACE names."""
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new(self) -> Iterator[dict[str, Any]]:
        """Yield the events that were added since the last call."""
        for path in self._folder.glob("*.jsonl"):
            with open(path, "rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            yield from map(json.loads, whole.splitlines())


class Killer:
    """Kills ranks as they come to steps."""

    def __init__(self, folder: Path, kills: Sequence[Kill], orderer: Orderer) -> None:
        """`folder`: where the trace is written. `orderer` is told of each step."""
        self._orderer = orderer
        self._folder = str(folder.parent)
        self._trace = Trace(folder)
        self._kills = sorted(kills, key=lambda kill: kill.done)
        self._dead: set[int] = set()
        self.made: list[Kill] = []
        self.step = 0

    def look(self) -> None:
        """Kill each rank that has come to the step of one of its kills."""
        for event in self._trace.new():
            if event["event"] != "step":
                continue
            self.step = max(self.step, int(event["step"]))
            self._orderer.done(int(event["rank"]), int(event["step"]))
            for kill in self._kills:
                is_there = event["rank"] == kill.rank and event["step"] >= kill.done
                if is_there and event["pid"] not in self._dead:
                    self._kill(kill, int(event["pid"]))
                    break

    def _kill(self, kill: Kill, pid: int) -> None:
        if kill.server is not None:
            server = server_of(self._folder, kill.server)
            if server is None:
                return
            pid = server
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return  # The process has ended already.
        self._dead.add(pid)
        self._kills.remove(kill)
        self.made.append(kill)


def record(trace: Path, logs: Path, kills: Sequence[Kill]) -> Record:
    """Return the record of a run: the loss of each step, and the lines that rank 0 printed."""
    ranks: dict[int, Rank] = {}
    for event in sorted(Trace(trace).new(), key=lambda event: int(event["t_ns"])):
        if event["event"] == "step":
            rank = ranks.setdefault(int(event["rank"]), Rank(opened=True))
            what = {"the loss": repr(event["loss"]), "the samples": str(event["samples"])}
            rank.states.append((int(event["step"]), what))
    for kill in kills:
        if kill.rank in ranks:
            ranks[kill.rank].kills.append(kill.number)
    log = logs / "worker_0.log"
    if 0 in ranks and log.exists():
        for text in log.read_text(errors="replace").splitlines():
            if text.strip() and not text.startswith(("holdfast:", "msrun:")):
                shape = _NUMBER.sub("#", text)
                ranks[0].printed.append(Line(((shape, 0),), text, 0, 1))
    return Record(ranks)


def orders(
    clean: Record, spares: Sequence[str], quick: bool, servers: Sequence[int] = ()
) -> list[Order]:
    """Return the runs with kills: one per rank and number of spares, or one run if `quick`.

    Servers have no spares, so each of them has one run more; if `quick`, one is killed once.
    """
    ranks = sorted(clean.ranks.keys() - set(servers))  # Servers write traces, too.
    if quick:
        victims = [(ranks[-1], None), (ranks[0], None), *((ranks[0], s) for s in servers[:1])]
        kills = [_kill(clean, i, *one, i, len(victims)) for i, one in enumerate(victims)]
        return [Order(f"kills-{spares[0]}", "kills", spares=spares[0], kills=tuple(kills))]
    found = []
    for number in spares:
        for rank in ranks:
            kills = [_kill(clean, i, rank, None, i, _EACH) for i in range(_EACH)]
            title = f"kills of rank {rank}, spares: {number}"
            name = f"kills-{rank}-{number}"
            found.append(Order(name, title, spares=number, kills=tuple(kills)))
    for server in servers:
        kills = [_kill(clean, i, ranks[0], server, i, _EACH) for i in range(_EACH)]
        title, name = f"kills of server {server}", f"kills-server-{server}"
        found.append(Order(name, title, spares=spares[0], kills=tuple(kills)))
    return found


def _kill(clean: Record, number: int, rank: int, server: int | None, index: int, of: int) -> Kill:
    done = max(1, (index + 1) * clean.steps // (of + 1))
    return Kill(number, rank, OUTSIDE, done, 0, server)
