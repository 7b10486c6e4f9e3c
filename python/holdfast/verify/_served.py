"""The parameter servers of a run: who they are, what is pushed to them, and their rows at the end.

This is used in the processes of the run.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections import defaultdict
from typing import Any, Final

FOLDER: Final = "tables"  # Of a run: the rows after its last step.


def server_of(folder: str, rank: int) -> int | None:
    """Return the process of a server of the run that has this folder, if there is one."""
    wanted = {"MS_ROLE=MS_PSERVER", f"MS_NODE_ID={rank}"}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        words = environment_of(int(pid))
        if wanted <= words and any(word.endswith(f"={folder}/plan.json") for word in words):
            return int(pid)
    return None


def environment_of(pid: int) -> set[str]:
    """Return what a process was started with; nothing if it is gone, or another user's."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return set(os.fsdecode(file.read()).split("\0"))
    except OSError:
        return set()


class Pushes:
    """What this process pushes to tables: where a row differs, this says in which step it began."""

    def __init__(self) -> None:
        """Begin with nothing that was pushed."""
        self._of: defaultdict[str, Any] = defaultdict(hashlib.blake2b)

    def watch(self) -> None:
        """Note what the faces push from now on."""
        from holdfast._tables import Spec, Table

        usual_init, usual_push, pushes = Table.__init__, Table.push, self

        def init(self: Any, session: Any, spec: Spec) -> None:
            usual_init(self, session, spec)
            self.spec = spec

        def push(self: Any, keys: int, count: int, gradients: int) -> int:
            noted = pushes._of[f"what is pushed to table {self.spec.name}"]
            for place, size in ((keys, 8 * count), (gradients, 4 * count * self.spec.values)):
                noted.update(ctypes.string_at(place, size) if size else b"")
            return usual_push(self, keys, count, gradients)

        Table.__init__, Table.push = init, push  # type: ignore[method-assign]

    def take(self) -> dict[str, str]:
        """Return digests of what was pushed in the step that has ended, and begin anew."""
        found = {name: noted.hexdigest()[:16] for name, noted in self._of.items()}
        self._of.clear()
        return found


def save_rows_for_verify(folder: str) -> None:
    """Save all tables."""
    from holdfast.torch._tables import save_tables

    save_tables(folder)


def save_at_the_end(state: Any, folder: str) -> None:
    """Have the tables saved when the training of a State of holdfast.torch has ended."""
    engine = state.engine
    if engine.tables or engine.served:
        engine.at_end.append(lambda: state.once(save_rows_for_verify, f"{folder}/{FOLDER}"))
