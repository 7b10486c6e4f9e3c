"""Which steps a rank lets be recorded for a rehearsal, and where it puts them. For both faces."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from holdfast._core import Session

_ONE_IN: Final = 4


def recording_folder(directory: str | Path, rank: int) -> Path:
    """Return the folder of a rank's rehearsals in the job's, there while one is under way."""
    return Path(directory) / f"rehearsal-{rank}"


class FirstSteps:
    """Leaves out the first steps of epochs.

    Before such a step a rehearsal would run what ends an epoch, which may write a checkpoint. Where
    each epoch has one step there is no other one, so one of four that come on end is taken.
    """

    def __init__(self) -> None:
        """Have seen no step."""
        self._on_end = 0

    def sample(self, session: Session, is_first: bool) -> bool:
        """Return whether the step that has just begun is recorded, or rehearsed."""
        self._on_end = self._on_end + 1 if is_first else 0
        may = session.rehearses or not is_first or self._on_end % _ONE_IN == 0
        return may and session.sample()
