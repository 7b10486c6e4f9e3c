"""Where fleets are written down: a folder each, with the socket of its keeper. A name is taken and given up one at a time."""
import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


def folder_of_fleets() -> Path:
    return Path(os.environ.get("XDG_RUNTIME_DIR") or "/run") / "holdfast-hosts"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """For the moment in which a name is taken or given up."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:  # Else the last fleet took the folder with it.
                yield
                return
        finally:
            os.close(descriptor)


def remove(folder: Path) -> None:
    """Of one fleet, that has ended; and the folder of all, if this was the last. Under locked()."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
