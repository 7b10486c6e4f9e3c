"""Let a spare that is bound to a rank run the script beside the job, up to a first step.

The step is made on scratch state. So imports, data pipeline and compiled graph are ready when the
spare gets its place. Then the script goes on from where its training begins.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, NoReturn, TextIO

import numpy as np

from holdfast._say import say
from holdfast._seat import Phase
from holdfast.mindspore import _callbacks, _random, _role, _script
from holdfast.mindspore._between import Held
from holdfast.mindspore._cells import Cells
from holdfast.mindspore._engine import Engine
from holdfast.mindspore._image import memory


class _Muted:
    """Standard output that drops what a rehearsal prints."""

    def __init__(self, engine: Engine, usual: TextIO) -> None:
        self._engine, self._usual = engine, usual

    def __getattr__(self, name: str) -> Any:
        return getattr(self._usual, name)

    def write(self, text: str) -> int:
        """Write the text if this process has its place; else drop it."""
        return len(text) if self._engine.rehearsing else self._usual.write(text)


class Scratch:
    """Parameters, callbacks and cells as they are when a rehearsal begins a training."""

    def __init__(self, network: Any, callbacks: list[Any]) -> None:
        """Copy their values."""
        own = list(network.get_parameters())
        parameters = [*own, *_callbacks.parameters(callbacks, own)]
        self._kept = [(parameter, memory(parameter).copy()) for parameter in parameters]
        self._cells = Cells(network, lambda text: None)
        self._held = [
            Held(callback, _callbacks.attributes(callback, lambda text: None))
            for callback in callbacks
            if not _callbacks.repairs(callback)
        ]

    def put_back(self) -> None:
        """Set everything back to these values."""
        for parameter, value in self._kept:
            np.copyto(memory(parameter), value)
        self._cells.put_changed({})
        for held in self._held:
            held.put_back()


def begin(engine: Engine) -> None:
    """Begin a rehearsal if the script has a training, at which it can stop; else wait."""
    rank = engine.job.bound_rank
    if rank is None or not (_script.calls_train() or _script.has_state()):
        wait_for_place(engine)
        return
    engine.rehearsed = rank
    _role.tell_rank(os.environ, rank)
    muted: Any = _Muted(engine, sys.stdout)
    sys.stdout = muted
    engine.set_phase(Phase.ECHO)


def wait(engine: Engine, drawn: tuple[int, bytes]) -> None:
    """Wait for the place after a rehearsal has made its step."""
    gc.collect()  # Frees the rehearsal's pipeline: its threads would draw during the training.
    say(f"this spare has rehearsed rank {engine.rank} and waits for a place")
    assert engine.place
    _random.give_everything_back(drawn)


def stop_here(engine: Engine) -> None:
    """Wait for the place before the program's own loop, which is not made on scratch state."""
    say(f"this spare has rehearsed rank {engine.rank} up to its training and waits for a place")
    assert engine.place
    engine.set_phase(Phase.EARLY)


def wait_for_place(engine: Engine) -> None:
    """Let a spare wait where its import ends."""
    say("this spare has imported MindSpore and waits for a place")
    rank = engine.place.rank
    if rank and engine.job.bound_rank is None and _script.asks_for_rank_before_import():
        _begin_anew(rank)


def _begin_anew(rank: int) -> NoReturn:
    """End a spare whose program may have read its rank from the environment before it had one."""
    say(
        f"the program reads RANK_ID or DEVICE_ID, which this spare had not when it began; it "
        f"ends, and a new process takes the place of rank {rank}"
    )
    os._exit(1)
