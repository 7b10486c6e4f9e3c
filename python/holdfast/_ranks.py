"""Let a spare that is bound to no rank wait where its program reads its rank from os.environ.

Programs written for torchrun do so at their beginning, where a KeyError would end them.
"""

from __future__ import annotations

import os
import stat
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from holdfast._say import say

NAMES: Final = ("RANK", "LOCAL_RANK", "ROLE_RANK")
# Modules between the line that reads a rank and this one.
_PASSED_ON: Final = ("_ranks", "os", "<frozen os>", "_collections_abc", "<frozen _collections_abc>")
_ask: Callable[[], Any]  # Waits for the rank.
_waits_in = 0  # This process's id, until its rank is known. Its children have no rank to wait for.


class _WaitingEnvironment(type(os.environ)):  # type: ignore[misc]
    """os.environ of a spare that is bound to no rank. Whoever reads a rank waits for it."""

    def __getitem__(self, key: str) -> str:
        """Return the variable's value. If it is a rank, wait for it."""
        if key in NAMES and _waits_in == os.getpid():
            are_known()
            _say_where(key)
            _ask()
        value: str = super().__getitem__(key)
        return value


def are_known() -> None:
    """Stop waiting: the ranks are in os.environ, or about to be."""
    global _waits_in
    _waits_in = 0


def wait_where_they_are_read(ask: Callable[[], Any]) -> None:
    """Replace os.environ by an environment that waits, in a spare that is bound to no rank.

    `ask()` waits for the rank and publishes it. A spare that is bound to a rank has its variables
    from its start and does not wait.
    """
    global _ask, _waits_in
    if _waits_in == os.getpid() or "RANK" in os.environ or not _has_the_pipe_of_a_spare():
        return
    waiting = object.__new__(_WaitingEnvironment)
    waiting.__dict__.update(os.environ.__dict__)  # It shares the variables with the old one.
    os.environ = waiting  # noqa: B003
    _ask, _waits_in = ask, os.getpid()


def _has_the_pipe_of_a_spare() -> bool:
    """Return whether this process is a spare. A child of one has its variables, but no pipe."""
    given = os.environ.get("HOLDFAST_SPARE_FD", "")
    try:
        return stat.S_ISFIFO(os.fstat(int(given)).st_mode)
    except (OSError, ValueError):
        return False


def _say_where(key: str) -> None:
    """Say which line waits. The code after that line runs during a recovery."""
    lines = [
        line for line in traceback.extract_stack() if Path(line.filename).stem not in _PASSED_ON
    ]
    where = f"{lines[-1].filename}:{lines[-1].lineno}" if lines else "an unknown line"
    say(
        f"this spare waits for its rank at {where}, which reads {key}; with --spares all it would "
        "know it from its start"
    )
