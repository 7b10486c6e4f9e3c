"""Files of the job's folder, which is memory of this host and outlives its processes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that nobody sees in part. OSError: it is as it was, and nothing else is left."""
    part = path.with_name(f".{path.name}")
    try:
        part.write_bytes(content)
        part.rename(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
