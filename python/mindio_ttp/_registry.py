"""Keep what callers of mindio_ttp have registered, and who acts upon it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[..., Any]


class Actor(Protocol):
    """What stands behind the functions: Holdfast's face for the framework that calls them."""

    def repair(self) -> bool:
        """Bring the state of this process to the last step that is done. False: not possible."""

    def can_repair(self) -> bool:
        """Return whether repair() would do so."""

    def step(self) -> int:
        """Return the last step that is done, of the training under way."""

    def restarted(self) -> bool:
        """Return whether the caller is to be told that this process replaces another."""


class Registry:
    """One per process."""

    def __init__(self) -> None:
        """Nothing is registered."""
        self.handlers: dict[str, tuple[Handler, Any]] = {}
        self.mindx: dict[str, Handler] = {}
        self.args: Any = None
        self.step = 0  # Of the last tft_end_updating_os.
        self.updating = False
        self.world_size = 1
        self.replicas: dict[int, Any] = {}
        self.groups: dict[int, list[int]] = {}
        self.repair_type = "unknow"
        self.reported: int | None = None
        self.times = [0, 0]  # Of the last update: start, end.
        self.loaded_step = -1
        self.actor: Actor | None = None
        self._said: set[str] = set()

    def say_once(self, text: str) -> None:
        """Write one line for people, once."""
        if text not in self._said:
            self._said.add(text)
            print(f"mindio_ttp on Holdfast: {text}", file=sys.stderr, flush=True)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a registered handler with its context; None if there is none."""
        if name not in self.handlers:
            return None
        function, context = self.handlers[name]
        return function(*arguments, context)

    def switch(self, name: str) -> bool:
        """Return whether MS_ENABLE_TFT has a switch on, as MindSpore looks for it."""
        return f"{name}:1" in os.environ.get("MS_ENABLE_TFT", "")


registry = Registry()
