"""What a rank writes between steps for its successor, in a file of the job's folder."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

from holdfast.torch._files import write_whole

_LIMIT: Final = 1 << 26  # Bytes of a file, which is memory.


class Records:
    """Bytes by key; one counts once a later step is done. Not thread-safe."""

    def __init__(self, say: Callable[[str], None], what: str) -> None:
        """Know nothing and write nothing, until open().

        `say`: where warnings go; `what`: of what no more can be kept, and what comes of it.
        """
        self.known: dict[Any, bytes] = {}  # What a predecessor has written.
        self._say = say
        self._what = what
        self._path: Path | None = None
        self._room = _LIMIT

    @property
    def is_open(self) -> bool:
        """Whether anything is written."""
        return self._path is not None

    def open(self, path: Path, version: int) -> None:
        """Read what a predecessor wrote; `version`: with which this process begins."""
        self._path = path
        if not path.exists():
            return
        found = {}
        with path.open("rb") as file:
            try:
                while True:
                    key, then, raw = pickle.load(file)
                    found[key] = (then, raw)
            except (EOFError, pickle.UnpicklingError):
                pass  # It was killed while it wrote.
        found = {key: entry for key, entry in found.items() if entry[0] < version}
        whole = b"".join(pickle.dumps((key, *entry)) for key, entry in found.items())
        write_whole(path, whole)  # Without what was never done.
        self._room -= len(whole)
        self.known = {key: raw for key, (_, raw) in found.items()}

    def close(self) -> None:
        """Take back what was written, and write no more."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)
        self._path = None

    def add(self, key: Hashable, version: int, raw: bytes) -> None:
        """Write what came to be after step `version`."""
        if self._path is None or self._room < 0:  # They are numbered: nor what follows.
            return
        record = pickle.dumps((key, version, raw))
        if len(record) > self._room:
            self._say(f"{self._what.format(limit=f'more than {_LIMIT >> 20} MiB')}")
            self._room = -1
            return
        self._room -= len(record)
        try:
            with self._path.open("ab") as file:
                file.write(record)
        except OSError as error:  # The folder is memory of this host.
            self._say(self._what.format(limit=f"more than there is room for ({error})"))
            self._room = -1
