"""Files in the job's folder, which lies in this host's memory and outlives its processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically. OSError: the file is as before, and no other file is left."""
    part = path.with_name(f".{path.name}")
    try:
        part.write_bytes(content)
        part.rename(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
