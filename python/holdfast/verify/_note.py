"""Writes what a process of a run notes: a line of JSON each, in one file per rank.

A spare has no rank until it takes a place; what it notes before is held back until then.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

# What follows a rank in a file's name.
SUFFIX: Final = ".jsonl"


class Notes:
    """The file of this process's rank."""

    def __init__(self, folder: str, rank: int | None) -> None:
        """`rank` is None as long as it is not known."""
        self._folder = folder
        self._file = -1
        self._held: list[bytes] = []
        self._pid = os.getpid()
        if rank is not None:
            self.open(rank)

    def open(self, rank: int) -> None:
        """Write for a rank from now on."""
        if self._file < 0:
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(f"{self._folder}/rank-{rank}{SUFFIX}", flags, 0o644)
            for line in self._held:
                self._write(line)
            self._held.clear()

    def __call__(self, what: str, **more: Any) -> None:
        """Note something. A process that was forked off this one notes nothing."""
        if os.getpid() != self._pid:
            return
        line = (json.dumps({"what": what, **more}) + "\n").encode()
        if self._file < 0:
            self._held.append(line)
        else:
            self._write(line)

    def _write(self, line: bytes) -> None:
        while line:
            line = line[os.write(self._file, line) :]
