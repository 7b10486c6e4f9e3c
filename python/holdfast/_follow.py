"""Show on the terminal what the processes of a job write into their logs, line by line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast._streams import ERR, OUT

_IN_MODIFY: Final = 0x2
_IN_CREATE: Final = 0x100
_CHUNK: Final = 1 << 16
# On hosts other than 0, the log of a spare is spare_<host>_<n>.log.
# Where -r or -t tell the two streams apart, standard output is in a log beside the other.
_LOG: Final = re.compile(r"(?:worker_\d+|spare_(?:\d+_)?\d+)(?:\.stdout)?\.log")
_APART: Final = ".stdout.log"
_PROMOTED: Final = re.compile(
    rb"msrun: a spare has taken this place; .* (\S*spare_(?:\d+_)?\d+\.log)\s*$"
)


class _Log:
    """One open log, and how far it was read."""

    def __init__(self, path: Path, rank: int | None, *, ours: bool = True) -> None:
        self.file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.rank = rank  # None: a spare that has no place yet.
        self.ours = ours  # False: an earlier job left it, so it is not shown.
        self.rest = b""  # The line that has not ended yet.
        self.of = _identity(os.fstat(self.file))

    def read(self) -> list[bytes]:
        """Return the text added since the last read, cut after each line end or carriage return."""
        pieces: list[bytes] = []
        while chunk := os.read(self.file, _CHUNK):
            *whole, self.rest = re.split(rb"(?<=[\n\r])", self.rest + chunk)
            pieces += whole
            if len(self.rest) > _CHUNK:
                pieces, self.rest = [*pieces, self.rest], b""
        return pieces


def _identity(about: os.stat_result) -> tuple[int, int]:
    return about.st_dev, about.st_ino


class Follower:
    """The logs of a folder; `fileno()` is readable when there may be more to show.

    `write(rank, line, stream)` gets every line of a rank; the stream is OUT or ERR where the two
    are kept `apart`, else 0. A spare's lines come once it has its place. If
    somebody removes the folder, `is_told` is False until it is there again. Until then, call show()
    from time to time.
    """

    def __init__(
        self,
        folder: Path,
        write: Callable[[int, bytes, int], None],
        *,
        goes_on: bool = False,
        apart: bool = False,
    ) -> None:
        """Follow the logs that will be made in `folder`.

        `goes_on`: the job continues with the logs that are there already, so follow what is added
        to them. Otherwise they are not shown.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._write, self._apart = folder, write, apart
        self._places: dict[str, int] = {}  # The ranks that spares have taken, by log name.
        # msrun makes its logs as new files, which are told from the old ones by their inodes. The
        # old files are held open, so that no new log gets an inode number of theirs.
        self._logs: dict[str, _Log] = {}
        for path in folder.iterdir():
            if _LOG.fullmatch(path.name):
                self._logs[path.name] = _Log(path, self._rank_of(path.name), ours=goes_on)
                os.lseek(self._logs[path.name].file, 0, os.SEEK_END)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._inotify < 0 or not self._watch():
            error = ctypes.get_errno()
            raise OSError(error, f"can not watch {folder}: {os.strerror(error)}")
        self.is_told = True

    def _watch(self) -> bool:
        wanted = ctypes.c_uint32(_IN_MODIFY | _IN_CREATE)
        folder = os.fsencode(self._folder)
        return bool(self._libc.inotify_add_watch(self._inotify, folder, wanted) >= 0)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._inotify

    def show(self) -> None:
        """Write all that is new."""
        try:
            while os.read(self._inotify, _CHUNK):
                pass
        except BlockingIOError:
            pass
        self.is_told = self._watch()  # Somebody may have removed the folder and made it anew.
        for name, log in list(self._logs.items()):
            self._show(log, self._stream_of(name))
        with contextlib.suppress(FileNotFoundError):
            for path in sorted(self._folder.iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    self._take_up(path)

    def _take_up(self, path: Path) -> None:
        """Follow a log that is new, or that has replaced another one of the same name."""
        if not _LOG.fullmatch(path.name):
            return
        if former := self._logs.get(path.name):
            if former.of == _identity(path.stat()):
                return
            self._let_go(former, self._stream_of(path.name))
        self._logs[path.name] = _Log(path, self._rank_of(path.name))
        self._show(self._logs[path.name], self._stream_of(path.name))

    def _rank_of(self, name: str) -> int | None:
        is_workers = name.startswith("worker_")
        return int(name[len("worker_") :].split(".")[0]) if is_workers else self._places.get(name)

    def _stream_of(self, name: str) -> int:
        return OUT if name.endswith(_APART) else ERR if self._apart else 0

    def _show(self, log: _Log, stream: int) -> None:
        if log.rank is None or not log.ours:
            return
        for line in log.read():
            if promoted := _PROMOTED.search(line):
                name = Path(os.fsdecode(promoted[1])).name
                # If the spare's log was made after the folder was listed, the next show() finds it.
                for each in (name, name.removesuffix(".log") + _APART):
                    self._places[each] = log.rank
                    if each in self._logs:
                        self._logs[each].rank = log.rank
                        self._show(self._logs[each], self._stream_of(each))
            else:
                self._write(log.rank, line, stream)

    def close(self) -> None:
        """Write the rest and close the logs."""
        self.show()
        for name, log in self._logs.items():
            self._let_go(log, self._stream_of(name))
        os.close(self._inotify)

    def _let_go(self, log: _Log, stream: int) -> None:
        self._show(log, stream)
        if log.rank is not None and log.rest:
            self._write(log.rank, log.rest + b"\n", stream)
        os.close(log.file)
