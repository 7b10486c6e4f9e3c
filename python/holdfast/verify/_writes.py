"""Notes the files that a program writes outside its working folder."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from holdfast.verify._note import Notes

_FLAGS: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Left out: files of the system, of frameworks' caches, and of multiprocessing.
_NOT: Final = ("/dev/", "/proc/", "/sys/", "/run/")
_PARTS: Final = ("/.cache/", "/__pycache__/", "torchinductor_", "/pymp-", "/.triton/", "/torch_")


def watch_writes(notes: Notes, elsewhere: list[str]) -> None:
    """Note each file outside the working folder once, and whether it is new.

    `elsewhere`: more folders whose files are not noted.
    """
    ours = (*elsewhere, *_NOT, os.path.realpath(".") + "/")
    noted: set[str] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], (str, bytes)):
            return
        mode, flags = arguments[1], arguments[2]
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else False
        if not writes and not (isinstance(flags, int) and flags & _FLAGS):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if path in noted or path.startswith(ours) or any(part in path for part in _PARTS):
            return
        noted.add(path)
        notes("wrote", path=path, new=not os.path.exists(path))

    sys.addaudithook(hook)
