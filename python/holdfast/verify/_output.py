"""Notes each line that rank 0's program prints, with the line of source that printed it."""

from __future__ import annotations

import io
import os
import sys
from types import FrameType
from typing import Any, Final

from holdfast.verify._note import Notes
from holdfast.verify._whose import is_programs_code

_LONGEST: Final = 500


class _Tee(io.TextIOWrapper):
    """A standard stream that tells what is written to it."""

    _told: Output

    def write(self, text: str, /) -> int:
        done = super().write(text)
        self._told.take(self, text, sys._getframe(1))
        return done


class Output:
    """What this process prints, line by line."""

    def __init__(self, notes: Notes) -> None:
        """Note it with `notes`, once the rank is known to be 0."""
        self._notes = notes
        self._rest: dict[int, str] = {}
        self._source: dict[int, list[tuple[str, int]]] = {}
        self._off = False
        self._pid = os.getpid()
        self.done = -1  # Steps; -1: before State.

    def open(self, rank: int) -> None:
        """Learn the rank."""
        self._off = rank != 0

    def watch(self) -> None:
        """Watch standard output and error."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if type(stream) is not io.TextIOWrapper:
                continue
            stream.flush()
            tee = _Tee(
                stream.buffer,
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            tee._told = self
            setattr(sys, name, tee)
            setattr(self, f"_{name}", stream)  # Its end would close the buffer.

    def take(self, stream: Any, text: str, frame: FrameType | None) -> None:
        """Take what was written; a line is the source line's that wrote its first part."""
        if self._off or os.getpid() != self._pid:
            return
        key = id(stream)
        if not self._rest.get(key):
            self._source[key] = _source_of(frame)
        *whole, self._rest[key] = (self._rest.get(key, "") + text).split("\n")
        source = self._source[key]
        for words in whole:
            words = words.rpartition("\r")[2].rstrip()
            if source and words:
                self._notes("print", source=source, text=words[:_LONGEST], n=self.done)


def _source_of(frame: FrameType | None) -> list[tuple[str, int]]:
    """Return the program's line that prints, and the one that called it: it may be a helper's.

    Nothing where a library prints of itself.
    """
    found: list[tuple[str, int]] = []
    while frame is not None and len(found) < 2:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] in ("tqdm", "warnings", "holdfast", "torch"):
            break
        if is_programs_code(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found
