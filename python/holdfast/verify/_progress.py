"""Shows how far the runs are: a bar on a terminal, else a line for each run."""

from __future__ import annotations

import sys
from typing import Final

_WIDTH: Final = 24


class Progress:
    """The progress of all runs."""

    def __init__(self) -> None:
        """Begin before the first run."""
        self.runs = 0  # Number of runs; 0: not known.
        self.steps = 0  # Steps of each run; 0: not known.
        self._done = 0
        self._terminal = sys.stderr.isatty()

    def show(self, title: str, step: int) -> None:
        """Show the run under way."""
        if not self._terminal:
            return
        part = min(1.0, step / self.steps) if self.steps else 0.0
        whole = (self._done + part) / self.runs if self.runs else 0.0
        bar = "#" * int(whole * _WIDTH)
        of = f" of {self.steps}" if self.steps else ""
        text = f"[{bar:.<{_WIDTH}}] {self._done + 1}/{self.runs or '?'}  {title}: step {step}{of}"
        print(f"\r\x1b[K{text[:110]}", end="", file=sys.stderr, flush=True)

    def end(self, title: str, seconds: float, how: str) -> None:
        """Say that a run has ended."""
        self._done += 1
        if self._terminal:
            print("\r\x1b[K", end="", file=sys.stderr)
        print(f"holdfast verify: {title}: {how} ({seconds:.0f} s)", file=sys.stderr, flush=True)
