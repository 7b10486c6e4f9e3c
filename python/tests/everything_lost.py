"""Kill everything of a job at once: its launcher, its scheduler and all its workers."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path


def family(pid: int) -> list[int]:
    """Return a process and all that it and its children have started."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It has just ended.
            parents[int(entry.name)] = int(fields[1])
    found = [pid]
    for each in found:
        found.extend(child for child, parent in parents.items() if parent == each)
    return found


def cut_power(pid: int) -> None:
    """Kill them all, as a power cut does: none learns of the end of another."""
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for each in family(pid):
            with contextlib.suppress(ProcessLookupError):  # It has just ended by itself.
                os.kill(each, number)


def whole(folder: Path) -> list[Path]:
    """Return the snapshots in a folder, those of the latest steps first."""
    found = [manifest.parent for manifest in folder.glob("*/manifest.json")]
    return sorted(found, key=lambda one: -int(one.name.rpartition("-")[2]))
