"""Read the files of a snapshot, whoever has written them: what the agents leave in DIR/NAME.

snapshot/folder.h and snapshot/shard.h have the formats, runtime/jobs/arena_parts.cc says what a
rank's shard holds. Nothing is believed before its digest was right, and nothing that is read is
larger than the files.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from holdfast._errors import UserError

_LONGEST: Final = 1 << 24  # Bytes of a manifest, and of a shard's header.
_MANIFEST: Final = "manifest.json"
_MANIFEST_SEAL: Final = b',\n  "xxh3": "', b'"\n}\n'
_SHARD_SEAL: Final = b',"xxh3":"', b'"}}'
_DIGEST: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_NAME: Final = re.compile(r"[0-9a-f-]{1,100}", re.ASCII)
_KIND: Final = "a rank's part of a snapshot"
_SERVER_KIND: Final = "a parameter server's part of a snapshot"
_MOST_RANGES: Final = 32  # Twice arena::kMostParts, and some.
_BLOCK: Final = 1 << 24


class Range(NamedTuple):
    """Some bytes of an arena's file."""

    offset: int
    bytes: int

    @property
    def end(self) -> int:
        """The offset behind the last byte."""
        return self.offset + self.bytes


class Tensor(NamedTuple):
    """The bytes that a shard holds under a name."""

    name: str
    at: int  # In the file.
    bytes: int
    digest: str


def damaged(path: Path, what: str) -> UserError:
    """Return an error that names a file."""
    return UserError(f"{path} is damaged, or of no snapshot: {what}")


def _digest(memory: Any) -> str:
    """Return the XXH3 of a writable buffer, as the files have it."""
    from holdfast._abi import U64, lib  # Loads the native library.

    size, found = len(memory), (U64 * 1)()
    raw = (ctypes.c_char * size).from_buffer(memory) if size else ctypes.create_string_buffer(1)
    data = (ctypes.c_void_p * 1)(ctypes.addressof(raw))
    lib.hf_digest(1, data, (U64 * 1)(size), found)
    return f"{int(found[0]):016x}"


def _sealed(text: bytes, seal: tuple[bytes, bytes]) -> str | None:
    """Return the digest that stands at the end of a text; None: some byte is wrong."""
    before, after = seal
    length = len(text) - len(before) - 16 - len(after)
    if length < 0:
        return None
    digest = _digest(bytearray(text[:length]))
    return digest if text[length:] == before + digest.encode() + after else None


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> int:
    """Return a number that may be a size. ValueError: it is none."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError
    return value


class _File:
    """A plain file, open to be read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UserError(f"cannot open {path}: {error.strerror}") from None
        about = os.fstat(self._fd)
        if not stat.S_ISREG(about.st_mode):
            os.close(self._fd)
            raise UserError(f"{path} can not be used: it is no file")
        self.bytes = about.st_size

    def close(self) -> None:
        os.close(self._fd)

    def read(self, at: int, to: memoryview) -> None:
        done = 0
        while done < len(to):
            try:
                count = os.preadv(self._fd, [to[done : done + _BLOCK]], at + done)
            except OSError as error:
                raise UserError(f"cannot read {self.path}: {error.strerror}") from None
            if not count:
                raise damaged(self.path, "it is cut short")
            done += count

    def head(self, at: int, size: int) -> bytes:
        if size > _LONGEST or at + size > self.bytes:
            raise damaged(self.path, "it does not begin as it should")
        found = bytearray(size)
        self.read(at, memoryview(found))
        return bytes(found)


class Shard:
    """A file of one rank: some bytes by name, each with its digest."""

    def __init__(self, path: Path, bytes_: int, digest: str) -> None:
        """Open it. `bytes_`, `digest`: what the manifest says of it."""
        self.path = path
        self._file = _File(path)
        try:
            self.tensors, self.about = self._read_header(bytes_, digest)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise damaged(path, "its header makes no sense") from None

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_header(self, bytes_: int, digest: str) -> tuple[list[Tensor], dict[str, str]]:
        length = struct.unpack("<Q", self._file.head(0, 8))[0]
        text = self._file.head(8, length)
        found = _sealed(text, _SHARD_SEAL)
        if found is None:
            raise damaged(self.path, "its header is not as it was written")
        if found != digest or self._file.bytes != bytes_:
            raise damaged(self.path, "it is a shard of another snapshot than its manifest")
        header = _json(text)
        about = header.pop("__metadata__")
        if about["holdfast_shard"] != "1":
            raise ValueError
        tensors = []
        for name, tensor in header.items():
            begin, end = map(_number, tensor["data_offsets"])
            if tensor["dtype"] != "U8" or tensor["shape"] != [end - begin] or begin > end:
                raise ValueError
            tensors.append(Tensor(name, 8 + length + begin, end - begin, about[f"xxh3.{name}"]))
        tensors.sort(key=lambda tensor: (tensor.at, tensor.bytes))
        at = 8 + length
        for tensor in tensors:
            if tensor.at != at:
                raise damaged(self.path, "its tensors overlap, or leave a gap")
            at += tensor.bytes
        if at != self._file.bytes:
            raise damaged(self.path, "its size is not that of its tensors")
        return tensors, {key: str(value) for key, value in about.items()}

    def read(self, tensor: Tensor, to: memoryview) -> None:
        """Fill the memory with a tensor. UserError: it is damaged."""
        self._file.read(tensor.at, to)
        if _digest(to) != tensor.digest:
            raise damaged(self.path, f"its tensor `{tensor.name}` is not as it was written")


class Snapshot:
    """A snapshot of the whole job, by its manifest."""

    def __init__(self, folder: Path) -> None:
        """Read the manifest of DIR/NAME. UserError: it is no snapshot, or the manifest is wrong."""
        self.folder = folder
        path = folder / _MANIFEST
        file = _File(path)
        try:
            text = file.head(0, file.bytes)
        finally:
            file.close()
        if _sealed(text, _MANIFEST_SEAL) is None:
            raise damaged(path, "it is not as it was written")
        try:
            self._read(_json(text))
        except (KeyError, TypeError, ValueError):
            raise damaged(path, "it makes no sense") from None

    def _read(self, found: dict[str, Any]) -> None:
        if found["holdfast_snapshot"] != 1:
            raise ValueError
        self.version = _number(found["version"])
        self.about = {  # What a person knows a snapshot by.
            "step": self.version,
            "program": str(found["program"]).rstrip("\n").replace("\n", " "),
            "release": str(found.get("release", "")),
        }
        self.unix_ms = int(found["unix_ms"])
        self.servers = _number(found["servers"])
        self.workers = _number(found["world_size"]) - self.servers
        self.about |= {"workers": self.workers, "servers": self.servers}
        self._files = {}
        for one in found["files"]:
            if not _DIGEST.fullmatch(one["xxh3"]):
                raise ValueError
            self._files[_number(one["rank"])] = _number(one["bytes"]), str(one["xxh3"])
        if self.workers < 1 or sorted(self._files) != list(range(self.workers + self.servers)):
            raise ValueError

    @property
    def bytes(self) -> int:
        """Of the files of all workers."""
        return sum(self._files[rank][0] for rank in range(self.workers))

    def shard(self, rank: int) -> Shard:
        """Open the file of a worker."""
        return self._shard(rank, {"kind": _KIND, "workers": self.workers})

    def rows(self, rank: int) -> dict[str, bytearray]:
        """Return what a parameter server holds, as ranges of bytes."""
        shard = self._shard(rank, {"kind": _SERVER_KIND})
        try:
            found = {tensor.name: bytearray(tensor.bytes) for tensor in shard.tensors}
            for tensor in shard.tensors:
                shard.read(tensor, memoryview(found[tensor.name]))
        finally:
            shard.close()
        return found

    def _shard(self, rank: int, wanted: dict[str, Any]) -> Shard:
        path = self.folder / f"rank-{rank}.safetensors"
        shard = Shard(path, *self._files[rank])
        wanted = {**wanted, "rank": rank, "version": self.version}
        if any(shard.about.get(key) != str(value) for key, value in wanted.items()):
            shard.close()
            raise damaged(path, f"it is not rank {rank}'s part of version {self.version}")
        return shard


def find(path: Path) -> Snapshot:
    """Return the snapshot at DIR/NAME, or the newest whole one in DIR. UserError: there is none."""
    if os.path.lexists(path / _MANIFEST):
        return Snapshot(path)
    if not path.is_dir():
        raise UserError(f"there is no folder {path}")
    folders = [each for each in path.iterdir() if _NAME.fullmatch(each.name)]
    errors, found = [], []
    for folder in folders:
        if not os.path.lexists(folder / _MANIFEST):
            continue
        try:
            found.append(Snapshot(folder))
        except UserError as error:
            errors.append(str(error))
    if found:
        return max(found, key=lambda one: (one.unix_ms, one.version, one.folder.name))
    raise UserError(
        f"there is no whole snapshot in {path}" + "".join(f"; {error}" for error in errors[:3])
    )


def ranges_in(path: Path, text: str) -> Iterator[Range]:
    """Yield the ranges that a shard's `wanted` lists, as `offset+bytes offset+bytes`."""
    words = text.split()
    if len(words) > _MOST_RANGES:
        raise damaged(path, "it does not say what the rank needs")
    for word in words:
        offset, plus, size = word.partition("+")
        if not plus or not offset.isdecimal() or not size.isdecimal() or len(word) > 40:
            raise damaged(path, "it does not say what the rank needs")
        yield Range(int(offset), int(size))


def room(size: int) -> mmap.mmap:
    """Return memory that is zero. It takes no place before something is written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
    try:
        return mmap.mmap(-1, max(size, 1), flags=flags)
    except (OSError, ValueError, OverflowError, MemoryError):
        raise UserError(f"there are no {size:,} bytes of memory for the state") from None
