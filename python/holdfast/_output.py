"""Let a program go on when its log can not be written any more, as on a full disk.

In Python, a print() that finds no room raises an exception. That would end the training in all
processes one after the other, since their successors print to the same disk. A file that the user
redirects output to (`> data`) is no log: nobody would learn what is missing in it.
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
    """A log. Output that finds no room in it is lost, and the launcher says so."""

    def write(self, data: Any, /) -> int:  # bytes, or an object with a buffer.
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            return memoryview(data).nbytes


def outlive_a_full_disk() -> None:
    """Where standard output and error are the agent's log, lose output rather than fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # A stream that the program has put in place of Python's is left alone.
        if stream is getattr(sys, f"__{name}__") and _is_log(stream):
            setattr(sys, name, _on_a_log(stream))


def _is_log(stream: object) -> bool:
    if type(stream) is not io.TextIOWrapper:
        return False
    with contextlib.suppress(OSError, ValueError):
        about = os.fstat(stream.fileno())
        # As runtime/agent/children.cc and _shim.sh set them.
        logs = [os.environ.get(name) for name in ("HOLDFAST_PYTHON_LOG", "_HOLDFAST_STDOUT_LOG")]
        return f"{about.st_dev}:{about.st_ino}" in logs
    return False


def _on_a_log(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    with contextlib.suppress(OSError):
        stream.flush()
    log = _Log(stream.fileno(), "w", closefd=False)
    buffered = not isinstance(stream.buffer, io.RawIOBase)  # Not so under `python -u`.
    return io.TextIOWrapper(
        io.BufferedWriter(log) if buffered else log,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
