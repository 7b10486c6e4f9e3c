"""Let a program go on where its log can not be written any more, on a full disk say.

To Python a print() that finds no room is an exception, which would end the training in all
processes one after the other; their successors would print to the same disk. A file that the user
has the program print to (`> data`) is no log: of what it lacks nobody would learn.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import Any, Final

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE)


class _Log(io.FileIO):
    """A log: what finds no room in it is lost, which the launcher says."""

    def write(self, data: Any, /) -> int:  # bytes, or what has such.
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return memoryview(data).nbytes


def outlive_a_full_disk() -> None:
    """Lose what is printed, and go on, where standard output and error are the agent's log."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # What the program has put there itself is its own.
        if stream is getattr(sys, f"__{name}__") and _is_log(stream):
            setattr(sys, name, _on_a_log(stream))


def _is_log(stream: object) -> bool:
    if type(stream) is not io.TextIOWrapper:
        return False
    with contextlib.suppress(OSError, ValueError):
        about = os.fstat(stream.fileno())
        # As runtime/children.cc puts it.
        return os.environ.get("HOLDFAST_PYTHON_LOG") == f"{about.st_dev}:{about.st_ino}"
    return False


def _on_a_log(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    with contextlib.suppress(OSError):
        stream.flush()
    log = _Log(stream.fileno(), "w", closefd=False)
    buffered = not isinstance(stream.buffer, io.RawIOBase)  # It is none under `python -u`.
    return io.TextIOWrapper(
        io.BufferedWriter(log) if buffered else log,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
