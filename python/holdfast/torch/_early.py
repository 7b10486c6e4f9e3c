"""Keep what a program exchanges before its State as key-values of the job, up to the job's end.

A successor runs the same lines when the other ranks are long past them. It reads what the others
gave at their start. What its predecessor gave stays, in place of what the successor would give. So
all processes of a rank get the same answers. If a process is lost before its State, the others just
wait for its successor. A spare without a rank reads what the ranks gave. Once it has a rank, it
gives what that rank has not given yet.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

from holdfast._errors import Error, PeerError, UserError, WorldError
from holdfast._seat import Seat
from holdfast._vars import raw_bytes

OTHERS: Final = (
    "between hf.init() and hf.State(...) this process exchanges other things than the one it "
    "replaces, and is told the answers in their order. Exchange the same there in every start; "
    "load a checkpoint after State: `if state.n == 0: load()`"
)
_PART: Final = 1 << 20  # Most bytes of one value: it has to arrive within _WAIT_S.
_WAIT_S: Final = 0.2  # Between two looks at signals and at the time limit.
_WAIT_FOR_PLACE_S: Final = 0.02  # The same in a spare, which looks whether it has its place.
_NAMED_AFTER_S: Final = 10.0  # After this time the user is told which rank is awaited.


class Early:
    """A process's exchanges before its State. Ranks are the job's; `label` names their group.

    A call returns False if another rank has made its State without that exchange. Not thread-safe.
    Errors: PeerError if a rank came to another exchange; WorldError if it did not come in time.
    """

    def __init__(self, seat: Seat) -> None:
        """Begin without exchanges."""
        self._seat = seat
        self._made: Counter[tuple[str, str]] = Counter()
        self._owed: list[tuple[str, str, bytes, int | None]] = []
        self._succeeds: bool | None = None

    def gather(
        self,
        label: str,
        ranks: Sequence[int],
        what: str,
        mine: Tensor,
        everyone: Tensor,
        limit_s: float | None = None,
    ) -> bool:
        """Fill the rows of `everyone` with what each rank gave; its own row holds `mine`.

        `limit_s`: the program's own time limit; None: MS_TOPO_TIMEOUT.
        """
        name = self._begin(label)
        self._give(name, what, mine)
        until = None if limit_s is None else time.monotonic() + limit_s
        return all(self._take(name, what, rank, row, until) for rank, row in zip(ranks, everyone))

    def broadcast(self, label: str, root: int, tensor: Tensor) -> bool:
        """Fill `tensor` with what rank `root` gave."""
        name = self._begin(label)
        self._give(name, "a broadcast", tensor, by=root)
        return self._take(name, "a broadcast", root, tensor)

    def send(self, label: str, to: int, block: Tensor) -> None:
        """Give a block to rank `to`. A spare waits until it has a rank."""
        rank = self._seat.rank
        self._give(self._begin(f"{label}-from-{rank}-to-{to}", "sent"), "a block", block)

    def receive(self, label: str, source: int, block: Tensor) -> Callable[[], bool]:
        """Return a function that waits for the block. A spare waits until it has a rank."""
        own = self._seat.rank
        name = self._begin(f"{label}-from-{source}-to-{own}", "received")
        return lambda: self._take(name, "a block", source, block)

    @property
    def succeeds(self) -> bool:
        """Whether a predecessor of this process has made its State."""
        if self._succeeds is None:
            alone = self._seat.worker.solo
            self._succeeds = not alone and self.look(f"past-{self._seat.place.rank}") is not None
        return self._succeeds

    def end(self) -> None:
        """Say that this rank's State is made. Requires: the rank is known.

        UserError: this process exchanged more or less than its predecessor, so that answers may
        belong to other exchanges.
        """
        if self._seat.worker.solo:
            return
        _ = self.succeeds  # To be asked before this process puts its own `past`.
        self._give_what_is_owed()
        mine = str(sorted(self._made.items())).encode()
        if self.first(f"past-{self._seat.place.rank}", mine) != mine:
            raise UserError(OTHERS)

    def leave(self) -> None:
        """Say that this rank's program has ended well without ever making a State."""
        if not self._seat.worker.solo:
            with suppress(Error):  # No room, or the job has ended meanwhile.
                self._put(f"left-{self._seat.place.rank}", b"")

    def look(self, name: str, wait_s: float = 0) -> bytes | None:
        """Return the value of a name in this run; None: there is none within `wait_s` seconds."""
        found = self._get([self._key(name)], wait_s)
        return found and found[1]

    def first(self, name: str, mine: bytes) -> bytes:
        """Return the value of a name in this run. If it has none, set it to `mine` first."""
        if (known := self.look(name)) is not None:  # Saves a successor the put.
            return known
        self._put(name, mine)
        return self.look(name) or b""

    # ---- Inside ---------------------------------------------------------------------------------

    def _begin(self, label: str, part: str = "") -> str:
        """Return the name of a group's next exchange. Exchanges are numbered in order."""
        self._made[label, part] += 1
        return f"exchange-{label}-{self._made[label, part]}"

    def _give(self, name: str, what: str, data: Tensor, by: int | None = None) -> None:
        """Give this rank's part; with `by`, only if this is rank `by`. A spare does it later."""
        raw = raw_bytes(data)
        if self._seat.waits_spare:
            self._owed.append((name, what, raw, by))
        elif by in (None, self._seat.place.rank):
            self._write(name, what, raw)

    def _take(
        self, name: str, what: str, rank: int, into: Tensor, until: float | None = None
    ) -> bool:
        """Wait for a rank's part. False: the rank has made its State and gave none.

        `until`: the end of the program's own time limit; None: MS_TOPO_TIMEOUT.
        """
        began = time.monotonic()
        keys = [self._key(k) for k in (f"{name}-of-{rank}", f"past-{rank}", f"left-{rank}")]
        while True:
            self._see_whether_it_is_due()
            wait_s = _WAIT_FOR_PLACE_S if self._seat.waits_spare else _WAIT_S
            which, value = self._get(keys, wait_s) or (-1, b"")
            if which == 0:
                break
            if which == 1:
                return False
            if which == 2:
                raise PeerError(
                    f"rank {rank} has ended its program without a State, and without {what} that "
                    "this one came to before its own; all ranks run one program"
                )
            now = time.monotonic()
            if until is not None and now > until:
                raise WorldError(f"rank {rank} did not come to {what} within the timeout given")
            if now - began > _limit_s():
                raise WorldError(
                    f"rank {rank} did not come to {what} before its State within MS_TOPO_TIMEOUT; "
                    "all ranks run one program, and each has to come there; if one prepares data "
                    "for so long, give MS_TOPO_TIMEOUT more seconds"
                )
            if now - began > _NAMED_AFTER_S and not self._seat.waits_spare:
                self._seat.say_once(
                    f"this process waits at {what} for rank {rank}, which has not come there yet; "
                    "all ranks run one program, and each has to come there"
                )
        given, raw = self._whole(keys[0], value)
        if given == what.encode() and len(raw) == into.nbytes:
            fill(into, raw)
        elif self._seat.waits_spare or rank != self._seat.place.rank:
            raise PeerError(
                f"before their States rank {rank} came to {given.decode()} of {len(raw)} bytes "
                f"where this one has {what} of {into.nbytes}; all ranks run one program and "
                "exchange the same in the same order"
            )  # No error for this rank's own part: its predecessor's may have another size.
        return True

    def _see_whether_it_is_due(self) -> None:
        """In a spare: if it was given its place, take it and give the parts that it owes."""
        if self._seat.waits_spare and self._seat.place_is_due():
            _ = self._seat.place
        if not self._seat.waits_spare:
            self._give_what_is_owed()

    def _give_what_is_owed(self) -> None:
        owed, self._owed = self._owed, []
        for name, what, raw, by in owed:
            if by in (None, self._seat.place.rank):
                self._write(name, what, raw)

    def _write(self, name: str, what: str, raw: bytes) -> None:
        """Write this rank's part, unless a predecessor did, since the others may have read that."""
        if self.succeeds:
            return  # The predecessor gave it; or nobody will ask for it.
        key = f"{name}-of-{self._seat.place.rank}"
        more = [raw[i : i + _PART] for i in range(_PART, len(raw), _PART)]
        process = os.getpid()  # In the keys of the rest of a part; see _whole().
        try:
            for i, rest in enumerate(more):
                self._put(f"{key}-{process}-{i}", rest)
            head = f"{what}\n{process if more else 0} {len(more)}\n"
            self._put(key, head.encode() + raw[:_PART])
        except UserError as error:
            raise WorldError(
                "what is exchanged before State is kept by the job's scheduler, and can not be: "
                f"{error}; exchange less there, or exchange it after State"
            ) from None

    def _whole(self, key: str, head: bytes) -> tuple[bytes, bytes]:
        """Return which exchange a rank came to, and its part of it, which begins with `head`."""
        given, more, raw = head.split(b"\n", 2)
        process, count = map(int, more.split())
        name = key.rpartition(".")[0]
        rest = (self.look(f"{name}-{process}-{i}") or b"" for i in range(count))
        return given, b"".join((raw, *rest))

    def _get(self, keys: list[str], wait_s: float) -> tuple[int, bytes] | None:
        try:
            return self._seat.worker.get(keys, wait_s)
        except WorldError:
            if self._seat.waits_spare:
                _ = self._seat.place  # The job is over, and a spare ends in here.
            raise

    def _put(self, name: str, value: bytes) -> None:
        self._seat.worker.put(self._key(name), value)

    def _key(self, name: str) -> str:
        """Return the key of a name. It does not depend on the rank or host, so a spare knows it."""
        return f"{name}.early"


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
