"""Writes the notes of one process in a run: each is a line of JSON, in one file per rank.

A spare has no rank until it takes a place. Its notes are held back until then.
"""

from __future__ import annotations

import json
import os
from typing import Any, Final

# Ends the name of a file of notes: rank-<rank>.jsonl.
SUFFIX: Final = ".jsonl"


class Notes:
    """The file of this process's rank."""

    def __init__(self, folder: str, rank: int | None) -> None:
        """`rank` is None while it is not known."""
        self._folder = folder
        self._file = -1
        self._held: list[bytes] = []
        self._pid = os.getpid()
        if rank is not None:
            self.open(rank)

    def open(self, rank: int) -> None:
        """Write to the file of `rank` from now on, first the notes that were held back."""
        if self._file < 0:
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(f"{self._folder}/rank-{rank}{SUFFIX}", flags, 0o644)
            for line in self._held:
                self._write(line)
            self._held.clear()

    def __call__(self, what: str, **more: Any) -> None:
        """Write a note. A process that was forked from this one writes none."""
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
