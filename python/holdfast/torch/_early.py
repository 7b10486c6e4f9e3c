"""What the program exchanges before its State, kept as files in the job's folder until its end.

A process that replaces another runs the same lines when the others are long past them. It reads
what they gave at their start, and what its predecessor gave stands for what it would give: so all
processes of a rank are told the same, and nobody waits for a process that was lost here but for its
successor. A spare, which has no rank yet, reads as the others do; what it would have given, it
gives if it gets its rank before the rank has given that.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from holdfast._errors import PeerError, WorldError
from holdfast.torch._files import write_whole
from holdfast.torch._frames import callers

if TYPE_CHECKING:
    from holdfast.torch._engine import Engine

LIMIT: Final = 1 << 24  # Bytes of an operand up to which it is kept: the folder is memory.
_NOT_OF_THE_PROGRAM: Final = (
    f"{Path(torch.__file__).parent}/",
    f"{Path(__file__).parent.parent}/",
    "<frozen",
)
_LOOK_EVERY_S: Final = 0.0005
_SELDOM_S: Final = 0.02


class Early:
    """One process's part in it. Ranks are of the job here, `label` names their group.

    What is asked for gives False where the others did not exchange it and are past their States.
    Errors: PeerError if a rank came to something else; WorldError if it did not come in time.
    Not thread-safe.
    """

    def __init__(self, engine: Engine) -> None:
        """Give and take nothing yet."""
        self._engine = engine
        self._made: Counter[tuple[str, str]] = Counter()
        self._owed: list[tuple[str, str, bytes, int | None]] = []
        self._called: list[tuple[str, str, int, str]] = []  # Not written yet.
        self._known: dict[tuple[str, str, int], str] = {}  # The calls of the rank `_of`.
        self._of: int | None = None
        self._over = False  # That rank was past its State when they were read.
        self._succeeds: bool | None = None

    def gather(
        self, label: str, ranks: Sequence[int], what: str, mine: Tensor, everyone: Tensor
    ) -> bool:
        """Fill the rows of `everyone` with what each rank gave; its own row holds `mine`."""
        if (name := self._begin(label)) is None:
            return False
        self._give(name, what, mine)
        return all(self._take(name, what, rank, row) for rank, row in zip(ranks, everyone))

    def broadcast(self, label: str, root: int, tensor: Tensor) -> bool:
        """Copy what rank `root` gave."""
        if (name := self._begin(label)) is None:
            return False
        self._give(name, "a broadcast", tensor, by=root)
        return self._take(name, "a broadcast", root, tensor)

    def send(self, label: str, to: int, block: Tensor) -> None:
        """Give a block to one rank. A spare waits for its own."""
        rank = self._engine.place.rank
        if name := self._begin(f"{label}-from-{rank}-to-{to}", "sent"):
            self._give(name, "a block", block)

    def receive(self, label: str, source: int, block: Tensor) -> Callable[[], bool]:
        """Return what takes the block that `source` sent to this rank. A spare waits for it."""
        own = self._engine.place.rank
        name = self._begin(f"{label}-from-{source}-to-{own}", "received")
        return lambda: name is not None and self._take(name, "a block", source, block)

    def is_over(self, label: str) -> bool:
        """Whether the next exchange of a group was not made by this rank's predecessor."""
        return self._next(label, "")[0] is None

    @property
    def succeeds(self) -> bool:
        """Whether a predecessor of this process has made its State."""
        if self._succeeds is None:
            self._succeeds = self._past(self._engine.place.rank).exists()
        return self._succeeds

    def end(self) -> None:
        """Say that this rank's State is made. Requires: the rank is known."""
        if not self._engine.worker.solo:
            self._give_what_is_owed()
            self._past(self._engine.place.rank).touch()

    def leave(self) -> None:
        """Say that this rank's program has ended well, and never made a State."""
        if not self._engine.worker.solo:
            self._left(self._engine.place.rank).touch()

    def file(self, name: str) -> Path:
        """Return a file of this run in the job's folder; one that was killed may have left its."""
        if self._engine.waits_spare:  # An agent's children share it.
            folder = Path(os.environ["HOLDFAST_LIFELINE"]).parent
            return folder / f"{name}.{os.environ['HOLDFAST_RUN']}"
        return Path(self._engine.place.directory) / f"{name}.{self._engine.place.run_id}"

    # ---- Inside ---------------------------------------------------------------------------------

    def _next(self, label: str, part: str) -> tuple[int | None, str]:
        """Return the number of the exchange that is asked for here, and the place of the call.

        None: it was not made at the first start. Which one it is, is told by where the program
        calls: what it makes only if there is a checkpoint must not take the place of what follows.
        """
        number, site = self._made[label, part] + 1, f"{label} {part} {_site()}"
        calls = self._calls()
        while (label, part, number) in calls:
            if calls[label, part, number] == site:
                return number, site
            number += 1
        return (None if self._over else number), site

    def _begin(self, label: str, part: str = "") -> str | None:
        number, site = self._next(label, part)
        if number is None:
            return None
        self._made[label, part] = number
        self._called.append((label, part, number, site))
        if not self._engine.waits_spare:
            self._write_calls()
        return f"exchange-{label}-{number}"

    def _write_calls(self) -> None:
        if not self._called:
            return
        calls = self._calls()
        with self.file(f"calls-{self._engine.place.rank}").open("a") as file:
            for call in self._called:
                if call[:3] not in calls:
                    file.write(json.dumps(call) + "\n")
        self._called.clear()

    def _calls(self) -> dict[tuple[str, str, int], str]:
        """Return where a predecessor exchanged what; for a spare: where rank 0 did."""
        rank = 0 if self._engine.waits_spare else self._engine.place.rank
        if self._of != rank:
            self._of, self._over = rank, self._past(rank).exists()
            self._known = {}
            with contextlib.suppress(FileNotFoundError):
                file = self.file(f"calls-{rank}")
                whole, _, torn = file.read_text().rpartition("\n")
                for line in whole.splitlines():
                    label, part, number, site = json.loads(line)
                    self._known[label, part, number] = site
                if torn and not self._engine.waits_spare:  # Its writer was killed; we go on there.
                    os.truncate(file, file.stat().st_size - len(torn.encode()))
        return self._known

    def _give(self, name: str, what: str, data: Tensor, by: int | None = None) -> None:
        """Give a part; `by`: only as that rank."""
        raw = as_bytes(data)
        if self._engine.waits_spare:
            self._owed.append((name, what, raw, by))
        elif by in (None, self._engine.place.rank):
            self._write(name, what, raw)

    def _take(self, name: str, what: str, rank: int, into: Tensor) -> bool:
        """Wait for the part of a rank."""
        file = self.file(f"{name}-of-{rank}")
        until = time.monotonic() + _limit_s()
        pause = _LOOK_EVERY_S
        while not file.exists():
            self._see_whether_it_is_due()
            if self._past(rank).exists() and not file.exists():
                return False
            if self._left(rank).exists() and not file.exists():
                raise PeerError(
                    f"rank {rank} has ended its program without a State, and without {what} that "
                    "this one came to before its own; all ranks run one program"
                )
            if time.monotonic() > until:
                raise WorldError(
                    f"rank {rank} did not come to {what} before its State within MS_TOPO_TIMEOUT; "
                    "all ranks run one program, and each has to come there; if one prepares data "
                    "for so long, give MS_TOPO_TIMEOUT more seconds"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _SELDOM_S)
        given, _, raw = file.read_bytes().partition(b"\n")
        if given == what.encode() and len(raw) == into.nbytes:
            fill(into, raw)
        elif self._engine.waits_spare or rank != self._engine.place.rank:
            raise PeerError(
                f"before their States rank {rank} came to {given.decode()} of {len(raw)} bytes "
                f"where this one has {what} of {into.nbytes}; all ranks run one program and "
                "exchange the same in the same order"
            )  # Of an own predecessor's objects, as a time or a name, the size may be another.
        return True

    def _past(self, rank: int) -> Path:
        return self.file(f"past-{rank}")

    def _left(self, rank: int) -> Path:
        return self.file(f"left-{rank}")

    def _see_whether_it_is_due(self) -> None:
        """Take the place that this spare was given, and give what is then its to give."""
        if self._engine.waits_spare:
            place = int(os.environ["HOLDFAST_SPARE_FD"])
            if select.select([place], [], [], 0)[0]:
                _ = self._engine.place
        if not self._engine.waits_spare:
            self._give_what_is_owed()

    def _give_what_is_owed(self) -> None:
        self._write_calls()
        owed, self._owed = self._owed, []
        for name, what, raw, by in owed:
            if by in (None, self._engine.place.rank):
                self._write(name, what, raw)

    def _write(self, name: str, what: str, raw: bytes) -> None:
        """Write what the others will read, whole; what a predecessor wrote they may have read."""
        rank = self._engine.place.rank
        whole = self.file(f"{name}-of-{rank}")
        if whole.exists() or self._past(rank).exists():
            return  # The latter: its predecessor did not exchange this, and nobody will.
        try:
            write_whole(whole, what.encode() + b"\n" + raw)
        except OSError as error:
            raise WorldError(
                "what is exchanged before State is kept in the job's folder, and can not be: "
                f"{error}; make room there, or exchange it after State"
            ) from None


def as_bytes(tensor: Tensor) -> bytes:
    """Return a copy of a tensor's elements."""
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def fill(tensor: Tensor, raw: bytes) -> None:
    """Write elements into a tensor of as many bytes, whatever autograd knows of it."""
    if not raw:
        return
    if tensor.is_contiguous():
        ctypes.memmove(tensor.data_ptr(), raw, len(raw))
    else:
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))


def _site() -> str:
    """Return where the program calls: its own lines, not those of torch or of this package."""
    return " ".join(
        f"{frame.f_code.co_filename}:{frame.f_lineno}"
        for frame in callers(sys._getframe(1))
        if not frame.f_code.co_filename.startswith(_NOT_OF_THE_PROGRAM)
    )


def _limit_s() -> float:
    given = float(os.environ.get("MS_TOPO_TIMEOUT") or 1800)  # Checked by init().
    return given if given >= 0 else float("inf")
