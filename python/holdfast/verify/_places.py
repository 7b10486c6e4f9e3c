"""The places of a program at which a process can be killed, and the kills themselves.

A kill is made only once: the process that makes it leaves a file with the kill's number.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from holdfast.verify._served import server_of

IN_STEP: Final = ("forward", "backward", "sum", "update")
BETWEEN: Final = ("between steps", "between epochs", "evaluation", "save")
OUTSIDE: Final = "any moment"  # For kills from outside.
PLACES: Final = (*IN_STEP, *BETWEEN, OUTSIDE)


@dataclass(frozen=True)
class Kill:
    """An order to kill a rank at the `nth` place of its kind (from 0) after `done` steps.

    With `server`, the rank kills this parameter server there, and lives.
    """

    number: int
    rank: int
    place: str
    done: int
    nth: int
    server: int | None = None  # Servers are the ranks after the workers'.

    @property
    def victim(self) -> str:
        """Who is killed."""
        return f"rank {self.rank}" if self.server is None else f"server {self.server}"


@dataclass(frozen=True)
class Drill:
    """An order that a fault happen to a rank after `done` steps: see docs/drills.md."""

    number: int
    kind: str
    rank: int
    done: int
    phase: str


class Places:
    """Notes each place as the program comes past it, and kills the process where a kill is due."""

    def __init__(self, kills: list[Kill], folder: str, note: Callable[..., None]) -> None:
        """`note` writes a record of an event."""
        self._kills = kills
        self._folder = folder
        self._note = note
        self.rank = -1  # Unknown: nothing is killed.
        self.done = 0
        self.in_step = False
        self._count: Counter[str] = Counter()
        self._wanted: dict[tuple[str, int], Kill] = {}
        self._in_once = False
        self._in_save = False
        self.live = False  # Between State and the end.

    def begin(self, rank: int, done: int) -> None:
        """Take the rank and the number of steps that are done."""
        self.rank = rank
        self._kills = [k for k in self._kills if k.rank == rank and not self._was_made(k)]
        self.live = True
        self._set(done)

    def _was_made(self, kill: Kill) -> bool:
        return os.path.exists(f"{self._folder}/killed-{kill.number}")

    def _set(self, done: int) -> None:
        self.done = done
        self._count.clear()
        self._wanted = {(k.place, k.nth): k for k in self._kills if k.done == done}

    def began(self) -> None:
        """Begin a step, for the first time or again."""
        self.in_step = True
        for place in IN_STEP:
            self._count[place] = 0

    def ended(self, done: int) -> dict[str, int]:
        """End a step; return how often the program came to each place in it."""
        self.in_step = False
        counts = {place: self._count[place] for place in IN_STEP if self._count[place]}
        self._set(done)
        return counts

    def past(self, place: str) -> Kill | None:
        """Count a place; return the kill that is due there, if any."""
        nth = self._count[place]
        self._count[place] += 1
        if place in BETWEEN and self.live:
            self._note("place", place=place, done=self.done, nth=nth)
        return self._wanted.get((place, nth))

    def at(self, place: str) -> None:
        """Count a place, and kill this process if a kill is due there."""
        kill = self.past(place)
        if kill is not None:
            self.make(kill)

    def make(self, kill: Kill) -> None:
        """Kill this process, or a server, unless an earlier process of the rank made this kill."""
        pid: int | None = os.getpid()
        if kill.server is not None:
            pid = server_of(self._folder, kill.server)
        if pid is None:
            return
        with contextlib.suppress(FileExistsError):
            path = f"{self._folder}/killed-{kill.number}"
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            self._note("kill", number=kill.number, place=kill.place, done=self.done)
            os.kill(pid, signal.SIGKILL)

    # ---- PyTorch --------------------------------------------------------------------------------

    def watch_torch(self) -> None:
        """Set hooks in torch, so that each place of a PyTorch program is counted here."""
        import torch
        from torch.nn.modules.module import register_module_forward_hook
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_module_forward_hook(self._after_forward)
        register_optimizer_step_post_hook(lambda *_: self._within("update"))
        usual_eval, usual_save = torch.nn.Module.eval, torch.save

        def eval_(module: Any) -> Any:
            if self.live and not self._in_once:
                self.at("evaluation")
            return usual_eval(module)

        def save(obj: Any, f: Any, *arguments: Any, **named: Any) -> Any:
            ours = str(sys._getframe(1).f_globals.get("__name__")).startswith("holdfast.")
            if ours or not self.live or self._in_save:
                return usual_save(obj, f, *arguments, **named)
            self._in_save = True
            try:
                kill = self.past("save")
                if kill is not None:
                    self._half_a_save(kill, usual_save, obj, f)
                return usual_save(obj, f, *arguments, **named)
            finally:
                self._in_save = False

        torch.nn.Module.eval = eval_  # type: ignore[assignment,method-assign]
        torch.save = save
        self._watch_sums()

    def _watch_sums(self) -> None:
        from holdfast.torch import _group

        kind = _group.HoldfastGroup
        for name in vars(kind):
            if name.startswith(("all", "reduce", "broadcast", "_all", "_reduce")):
                usual = getattr(kind, name)
                if callable(usual):
                    setattr(kind, name, self._watched(usual))

    def _watched(self, usual: Any) -> Any:
        def watched(*arguments: Any, **named: Any) -> Any:
            self._within("sum")
            return usual(*arguments, **named)

        return watched

    def _within(self, place: str) -> None:
        if self.in_step:
            self.at(place)

    def _after_forward(self, module: Any, given: Any, out: Any) -> None:
        if sys.modules["torch"].compiler.is_compiling():
            return
        if self._in_once and not self.in_step:
            self._in_once = False  # Only the first forward pass of an evaluation counts.
            self.at("evaluation")
        if not self.in_step:
            return
        self.at("forward")
        if isinstance(out, sys.modules["torch"].Tensor) and out.requires_grad and not out.is_leaf:
            kill = self.past("backward")
            if kill is not None:
                out.register_hook(lambda gradient: self.make(kill))

    def once_began(self) -> None:
        """Note that a state.once begins, which may be an evaluation."""
        self._in_once = True

    def once_done(self) -> None:
        """Note the end of a state.once. If no module ran in it, count an evaluation here."""
        if self._in_once:
            self._in_once = False
            self.at("evaluation")

    def _half_a_save(self, kill: Kill, usual: Any, obj: Any, f: Any) -> None:
        """Write the first half of a file, then kill this process."""
        whole = io.BytesIO()
        usual(obj, whole)
        half = whole.getvalue()[: len(whole.getvalue()) // 2]
        if isinstance(f, (str, os.PathLike)):
            with open(f, "wb") as file:
                file.write(half)
        else:
            f.write(half)
            with contextlib.suppress(Exception):
                f.flush()
        self.make(kill)
