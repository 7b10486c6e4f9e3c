"""The folders of fleets: one for each, with its keeper's socket. A lock covers the moments when names are taken and given up."""
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
    """Holds the lock on all names, while a name is taken or given up."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:  # Otherwise the folder was removed with the last fleet: try again.
                yield
                return
        finally:
            os.close(descriptor)


def remove(folder: Path) -> None:
    """Removes the folder of a fleet that has ended; also the common folder, if it was the last. Call it under locked()."""
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()
