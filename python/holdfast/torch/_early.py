"""Keep what the program exchanges before its State as files in the job's folder until its end.

A successor runs the same lines when the other ranks are long past them. It reads what they gave at
their start, and what its predecessor gave stands for what it would give. So all processes of a rank
get the same answers. If a process is lost here, the others wait for its successor only. A spare has
no rank yet and reads as the others do. Once it has its rank, it gives what is still missing.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor

from holdfast._errors import PeerError, UserError, WorldError
from holdfast._files import write_whole

if TYPE_CHECKING:
    from holdfast.torch._engine import Engine

OTHERS: Final = (
    "between hf.init() and hf.State(...) this process exchanges other things than the one it "
    "replaces, and is told the answers in their order. Exchange the same there in every start; "
    "load a checkpoint after State: `if state.n == 0: load()`"
)
LIMIT: Final = 1 << 24  # Bytes of an operand up to which it is kept: the folder is memory.
_LOOK_EVERY_S: Final = 0.0005
_SELDOM_S: Final = 0.02


class Early:
    """One process's part in these exchanges. Ranks are the job's; `label` names their group.

    A call returns False if the others are past their States without that exchange. Not thread-safe.
    Errors: PeerError if a rank came to something else; WorldError if it did not come in time.
    """

    def __init__(self, engine: Engine) -> None:
        """Give and take nothing yet."""
        self._engine = engine
        self._made: Counter[tuple[str, str]] = Counter()
        self._owed: list[tuple[str, str, bytes, int | None]] = []
        self._succeeds: bool | None = None

    def gather(
        self, label: str, ranks: Sequence[int], what: str, mine: Tensor, everyone: Tensor
    ) -> bool:
        """Fill the rows of `everyone` with what each rank gave; its own row holds `mine`."""
        name = self._begin(label)
        self._give(name, what, mine)
        return all(self._take(name, what, rank, row) for rank, row in zip(ranks, everyone))

    def broadcast(self, label: str, root: int, tensor: Tensor) -> bool:
        """Copy what rank `root` gave."""
        name = self._begin(label)
        self._give(name, "a broadcast", tensor, by=root)
        return self._take(name, "a broadcast", root, tensor)

    def send(self, label: str, to: int, block: Tensor) -> None:
        """Give a block to one rank. A spare waits for its own rank first."""
        rank = self._engine.rank
        self._give(self._begin(f"{label}-from-{rank}-to-{to}", "sent"), "a block", block)

    def receive(self, label: str, source: int, block: Tensor) -> Callable[[], bool]:
        """Return a function that takes the block from `source`. A spare awaits its rank first."""
        own = self._engine.rank
        name = self._begin(f"{label}-from-{source}-to-{own}", "received")
        return lambda: self._take(name, "a block", source, block)

    @property
    def succeeds(self) -> bool:
        """Whether a predecessor of this process has made its State."""
        if self._succeeds is None:
            alone = self._engine.worker.solo
            self._succeeds = not alone and self._past(self._engine.place.rank).exists()
        return self._succeeds

    def end(self) -> None:
        """Say that this rank's State is made. Requires: the rank is known.

        UserError: it exchanged more or less than its predecessor and may have got wrong answers.
        """
        if self._engine.worker.solo:
            return
        self._give_what_is_owed()
        past, mine = self._past(self._engine.place.rank), str(sorted(self._made.items()))
        if self.succeeds and past.read_text() != mine:
            raise UserError(OTHERS)
        write_whole(past, mine.encode())

    def leave(self) -> None:
        """Say that this rank's program has ended well without ever making a State."""
        if not self._engine.worker.solo:
            self._left(self._engine.place.rank).touch()

    def file(self, name: str) -> Path:
        """Return a file of this run in the job's folder; a killed run may have left its own."""
        if self._engine.waits_spare:  # All children of an agent share it.
            folder = Path(os.environ["HOLDFAST_LIFELINE"]).parent
            return folder / f"{name}.{os.environ['HOLDFAST_RUN']}"
        return Path(self._engine.place.directory) / f"{name}.{self._engine.place.run_id}"

    # ---- Inside ---------------------------------------------------------------------------------

    def _begin(self, label: str, part: str = "") -> str:
        """Return the name of a group's next exchange: exchanges are numbered in their order."""
        self._made[label, part] += 1
        return f"exchange-{label}-{self._made[label, part]}"

    def _give(self, name: str, what: str, data: Tensor, by: int | None = None) -> None:
        """Give this rank's part; with `by`, only if this is that rank."""
        raw = as_bytes(data)
        if self._engine.waits_spare:
            self._owed.append((name, what, raw, by))
        elif by in (None, self._engine.place.rank):
            self._write(name, what, raw)

    def _take(self, name: str, what: str, rank: int, into: Tensor) -> bool:
        """Wait for the part of a rank. False: the rank is past its State and gave none."""
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
            )  # A predecessor's own objects, such as a time or a name, may have another size.
        return True

    def _past(self, rank: int) -> Path:
        return self.file(f"past-{rank}")

    def _left(self, rank: int) -> Path:
        return self.file(f"left-{rank}")

    def _see_whether_it_is_due(self) -> None:
        """Take the place if this spare was given one, then give the parts that it owes."""
        if self._engine.waits_spare and self._engine.place_is_due():
            _ = self._engine.place
        if not self._engine.waits_spare:
            self._give_what_is_owed()

    def _give_what_is_owed(self) -> None:
        owed, self._owed = self._owed, []
        for name, what, raw, by in owed:
            if by in (None, self._engine.place.rank):
                self._write(name, what, raw)

    def _write(self, name: str, what: str, raw: bytes) -> None:
        """Write a part atomically, unless a predecessor did: the others may have read that one."""
        rank = self._engine.place.rank
        whole = self.file(f"{name}-of-{rank}")
        if whole.exists() or self._past(rank).exists():
            return  # The latter: its predecessor did not exchange this, so nobody will.
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
    """Write raw bytes into a tensor of the same size, unseen by autograd."""
    if not raw:
        return
    if tensor.is_contiguous():
        ctypes.memmove(tensor.data_ptr(), raw, len(raw))
    else:
        flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
        tensor.detach().copy_(flat.view(tensor.dtype).view(tensor.shape))


def _limit_s() -> float:
    given = float(os.environ.get("MS_TOPO_TIMEOUT") or 1800)  # Checked by init().
    return given if given >= 0 else float("inf")
