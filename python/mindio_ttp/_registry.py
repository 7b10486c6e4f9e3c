"""Hold what callers of mindio_ttp have registered, and the Actor that carries it out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

Handler = Callable[..., Any]


class Actor(Protocol):
    """Carries out what the functions ask for: Holdfast's face for a framework provides it."""

    def repair(self) -> bool:
        """Bring the state of this process to the last step that is done. False: not possible."""

    def can_repair(self) -> bool:
        """Return whether repair() would succeed."""

    def step(self) -> int:
        """Return the number of the last step done in the training under way."""

    def restarted(self) -> bool:
        """Return what tft_is_reboot_node() answers: whether this process replaces another."""


class Registry:
    """All that was registered in this process."""

    def __init__(self) -> None:
        """Begin with nothing registered."""
        self.handlers: dict[str, tuple[Handler, Any]] = {}
        self.mindx: dict[str, Handler] = {}
        self.args: Any = None
        self.step = 0  # Given by the last tft_end_updating_os().
        self.updating = False
        self.world_size = 1
        self.replicas: dict[int, Any] = {}
        self.groups: dict[int, list[int]] = {}
        self.repair_type = "unknow"
        self.reported: int | None = None
        self.times = [0, 0]  # Start and end of the last update.
        self.loaded_step = -1
        self.actor: Actor | None = None
        self._said: set[str] = set()

    def say_once(self, text: str) -> None:
        """Write one line for people, once."""
        if text not in self._said:
            self._said.add(text)
            print(f"mindio_ttp on Holdfast: {text}", file=sys.stderr, flush=True)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a registered handler with its context. None: no such handler."""
        if name not in self.handlers:
            return None
        function, context = self.handlers[name]
        return function(*arguments, context)

    def switch(self, name: str) -> bool:
        """Return whether MS_ENABLE_TFT switches a feature on, by MindSpore's own test."""
        return f"{name}:1" in os.environ.get("MS_ENABLE_TFT", "")


registry = Registry()
