"""Notes each line that rank 0's program prints, with the line of source that printed it."""

from __future__ import annotations

import io
import os
import sys
from types import FrameType
from typing import Any, Final

from holdfast._whose import is_programs_code
from holdfast.verify._note import Notes

_LONGEST: Final = 500


class _Tee(io.TextIOWrapper):
    """A standard stream that passes all that is written to it on to an Output."""

    _told: Output

    def write(self, text: str, /) -> int:
        done = super().write(text)
        self._told.take(self, text, sys._getframe(1))
        return done


class Output:
    """The output of this process, line by line."""

    def __init__(self, notes: Notes) -> None:
        """Note the output in `notes`, which hold it back until the rank is known."""
        self._notes = notes
        self._rest: dict[int, str] = {}
        self._source: dict[int, list[tuple[str, int]]] = {}
        self._off = False
        self._pid = os.getpid()
        self.done = -1  # Steps that are done; -1: before State.

    def open(self, rank: int) -> None:
        """Take the rank: only rank 0 notes its output."""
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
            setattr(self, f"_{name}", stream)  # Held: its end would close the buffer.

    def take(self, stream: Any, text: str, frame: FrameType | None) -> None:
        """Take text that was written. A line belongs to the source line that began to print it."""
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
    """Return the program's line that prints, and the line that called it: a helper may print.

    Return nothing if a library prints by itself.
    """
    found: list[tuple[str, int]] = []
    while frame is not None and len(found) < 2:
        name = frame.f_globals.get("__name__", "")
        if name.partition(".")[0] in ("tqdm", "warnings", "holdfast", "torch"):
            break
        if name in ("rich.live", "rich.progress"):  # Bars, with the time; not rich.print().
            break
        if is_programs_code(frame.f_code.co_filename):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found
