"""The arena of one rank, put together from a snapshot: what all ranks hold, and its own bytes."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Final, NamedTuple

from holdfast._errors import UserError
from holdfast._snapshot_files import Range, Shard, Snapshot, damaged, ranges_in, room

# arena/format.h and arena/layout.cc.
_LAYOUT_AT: Final = 12288
_PAGE: Final = 4096
_STAGGER: Final = 640
_LINE: Final = 32  # Floats.
_TITLE: Final = b"holdfast arena layout\n"
_FIXED: Final = struct.Struct("<QQQQQQQ")  # Magic, format, run, fingerprint, two sizes, check.
_MAGIC: Final = 0x6172656E61466421
_FORMAT: Final = 4
_NUMBER: Final = re.compile(rb"(-?[0-9]{1,19})[\n ]")
MOMENTS: Final = ((), ("momentum_buffer",), ("exp_avg", "exp_avg_sq"), ("exp_avg", "exp_avg_sq"))
OPTIMIZERS: Final = ("SGD", "SGD", "Adam", "AdamW")


class Floats(NamedTuple):
    """A parameter of a program that lets Holdfast make the update."""

    name: str
    elements: int


class _Text:
    """Reads numbers and names of a layout."""

    def __init__(self, text: bytes) -> None:
        self._text, self._at = text, 0

    def number(self) -> int:
        found = _NUMBER.match(self._text, self._at)
        if found is None:
            raise ValueError
        self._at = found.end()
        return int(found[1])

    def word(self, length: int) -> str:
        end = self._at + length
        if length < 0 or self._text[end : end + 1] != b"\n":
            raise ValueError
        found, self._at = self._text[self._at : end], end + 1
        return found.decode(errors="surrogateescape")

    @property
    def ended(self) -> bool:
        return self._at == len(self._text)


class Layout:
    """What an arena's file has where."""

    def __init__(self, head: bytes) -> None:
        """Read it from the beginning of the file. ValueError: that makes no sense."""
        magic, version, _, _, size, self.file_bytes, _ = _FIXED.unpack_from(head)
        raw = head[_LAYOUT_AT : _LAYOUT_AT + size]
        if (magic, version) != (_MAGIC, _FORMAT) or len(raw) != size or raw[:22] != _TITLE:
            raise ValueError
        text = _Text(raw[len(_TITLE) :])
        self.optimizer = text.number()
        self.private_bytes = text.number()
        ward, count = text.number(), text.number()
        if not 0 <= self.optimizer < len(MOMENTS) or self.private_bytes < 0 or ward >= 0:
            raise ValueError
        self.parameters: list[Floats] = []
        for _ in range(count):
            elements, length = text.number(), text.number()
            if elements < 0:
                raise ValueError
            self.parameters.append(Floats(text.word(length), elements))
        if not text.ended:
            raise ValueError
        floats = sum(_up(each.elements, _LINE) for each in self.parameters)
        self._gradients = _up(_LAYOUT_AT + size, _PAGE)
        self._stride = _up(4 * floats, _PAGE) + _PAGE + _STAGGER
        if self.private_offset(2) != self.file_bytes:
            raise ValueError

    def region(self, which: int) -> int:
        """Return where a region begins: 1: parameters, 2 and 3: moments."""
        return self._gradients + which * self._stride

    def private_offset(self, slot: int) -> int:
        """Return where private bytes begin."""
        first = _up(self.region(2 + len(MOMENTS[self.optimizer])), _PAGE)
        return first + slot * _up(self.private_bytes, _PAGE)


def _up(size: int, unit: int) -> int:
    return size + -size % unit


class Part:
    """The state of one rank. All that is read of it was checked."""

    def __init__(self, snapshot: Snapshot, rank: int) -> None:
        """Read it: the rank's own bytes from its shard, the others from those of all workers."""
        self.rank = rank
        self.path = snapshot.folder / f"rank-{rank}.safetensors"
        _see_that_it_fits(snapshot)
        shards: list[Shard] = []
        try:
            for each in range(snapshot.workers):
                shards.append(snapshot.shard(each))
            self._read(shards, snapshot.version)
        finally:
            for shard in shards:
                shard.close()

    def _read(self, shards: list[Shard], version: int) -> None:
        mine = shards[self.rank]
        head = next((each for each in mine.tensors if each.name == "head"), None)
        if head is None or head.bytes > 1 << 26:
            raise damaged(self.path, "it has no beginning of an arena")
        raw = bytearray(head.bytes)
        mine.read(head, memoryview(raw))
        try:
            self.layout = layout = Layout(bytes(raw))
        except (ValueError, struct.error):
            raise damaged(self.path, "its layout makes no sense") from None
        private = layout.private_offset(version % 2)
        floats = Range(layout.region(1), layout.private_offset(0) - layout.region(1))
        self._ranges = {floats: room(floats.bytes)}
        own = Range(private, layout.private_bytes)
        self._ranges[own] = room(own.bytes)
        self._filled: list[Range] = []
        for shard in shards:
            self._fill(shard, with_own=shard is mine)
        self._wanted = list(ranges_in(self.path, mine.about.get("wanted", "")))
        self._see_that_all_is_there()
        self.private = memoryview(self._ranges[own])[: own.bytes]
        self._begins = [each.offset - private for each in self._wanted if each.offset >= private]

    def _fill(self, shard: Shard, with_own: bool) -> None:
        for tensor in shard.tensors:
            kind, dot, offset = tensor.name.partition(".")
            if kind != "shared" and not (with_own and kind == "own"):
                continue
            if not dot or not offset.isdecimal() or len(offset) > 19:
                continue
            wanted = Range(int(offset), tensor.bytes)
            shard.read(tensor, self._memory(shard.path, wanted))
            self._filled.append(wanted)

    def _memory(self, path: Path, wanted: Range) -> memoryview:
        for there, memory in self._ranges.items():
            if there.offset <= wanted.offset and wanted.end <= there.end:
                at = wanted.offset - there.offset
                return memoryview(memory)[at : at + wanted.bytes]
        raise damaged(path, "its tensors go beyond what they belong to")

    def _see_that_all_is_there(self) -> None:
        self._filled.sort()
        for wanted in self._wanted:
            covered = wanted.offset
            for part in self._filled:
                if part.offset <= covered:
                    covered = max(covered, part.end)
            if covered < wanted.end:
                raise damaged(self.path, f"its snapshot lacks byte {covered} of the state")

    def floats(self, region: int) -> list[tuple[str, int, memoryview]]:
        """Return names, sizes and bytes of what lies in a region (see Layout.region)."""
        at, found = self.layout.region(region), []
        for name, elements in self.layout.parameters:
            found.append((name, elements, self._memory(self.path, Range(at, 4 * elements))))
            at += 4 * _up(elements, _LINE)
        return found

    def image(self, kind: bytes) -> int | None:
        """Return where in the private bytes the head of an image of a kind is; None: nowhere.

        Its format may be another one: see _head.read().
        """
        for at in (0, *self._begins):
            if self.private[at : at + len(kind) - 1] == kind[:-1]:
                return at
        return None


def _see_that_it_fits(snapshot: Snapshot) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if snapshot.bytes > memory:
        raise UserError(
            f"{snapshot.folder} has {snapshot.bytes:,} bytes, and this machine {memory:,} bytes of "
            "memory: export it on a larger one"
        )
