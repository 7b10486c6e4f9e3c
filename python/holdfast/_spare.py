"""Hold a spare of `holdfast run` back until the job keeps something, then become its program.

    _spare.py TOKEN PROGRAM [ARGUMENTS]

While nothing is kept, a spare can take nobody's place: the other ranks would not wait for it. If
the agent gives it a place all the same, it writes TOKEN into its log, with how its predecessor
ended, and the launcher starts all processes again. On a spare host, a spare asks the scheduler,
since no local process shows that the job keeps something. _shim.sh runs this file by its path, so
it imports nothing of Holdfast.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_LOOK_EVERY_MS = 100
_ASK_EVERY_MS = 1000
_ANSWER_S = 10


def something_is_kept(folder: Path) -> bool:
    """Whether a process has joined the job or has a state. _shim.sh asks the same."""
    return (folder / "joined").exists() or any(folder.glob("rank-*.arena"))


def _is_spare_host() -> bool:
    return int(os.environ.get("GROUP_RANK", "0")) >= int(os.environ.get("GROUP_WORLD_SIZE", "1"))


def _note_what_other_hosts_have(folder: Path) -> None:
    """Ask the scheduler whether a process has joined the job; if so, make `joined` here too."""
    ask = [str(Path(__file__).resolve().with_name("bin") / "holdfast"), "status", "--json"]
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):  # Ask again later.
        said = subprocess.run(
            [*ask, "--job", folder.name],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=True,
        )
        if json.loads(said.stdout)["ranks"]:
            (folder / "joined").touch(0o600)


def _watch(folder: Path) -> int:
    """Return an inotify for new files in the folder; -1: this user may have no more of them."""
    libc = ctypes.CDLL(None, use_errno=True)
    changes: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    wanted = ctypes.c_uint32(_IN_CREATE | _IN_MOVED_TO)
    if changes >= 0 and libc.inotify_add_watch(changes, os.fsencode(folder), wanted) < 0:
        os.close(changes)
        return -1
    return changes


def main(token: str, command: list[str]) -> NoReturn:
    """Wait, then become the program or end with the job."""
    folder = Path(os.environ["HOLDFAST_LIFELINE"]).parent
    place = int(os.environ["HOLDFAST_SPARE_FD"])
    changes = _watch(folder)
    poller = select.poll()
    poller.register(place, select.POLLIN)
    if changes >= 0:
        poller.register(changes, select.POLLIN)
    spare_host = _is_spare_host()
    patience = _ASK_EVERY_MS if spare_host else None if changes >= 0 else _LOOK_EVERY_MS
    while not something_is_kept(folder):
        ready = dict(poller.poll(patience))
        if changes in ready:
            os.read(changes, 1 << 16)
        if spare_host:
            _note_what_other_hosts_have(folder)
        if place not in ready or something_is_kept(folder):
            continue
        words = os.read(place, 4096).decode(errors="replace").strip().split(" ", 2)
        if words == [""]:  # The job has ended.
            raise SystemExit(0)
        print(token, *words[2:], flush=True)  # words: place, attempt, the predecessor's end.
        signal.alarm(60)
        signal.pause()  # The launcher ends this process.
    if "RANK" not in os.environ:  # It is a spare for any place.
        site = str(Path(__file__).resolve().with_name("_site"))
        others = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([site, others] if others else [site])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
