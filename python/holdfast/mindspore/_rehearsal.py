"""Let a spare run the program for every rank that it may get, up to a first step on scratch state.

Each rank is played in a thread of its own, one after another: imports, data pipeline and compiled
graph are there when the place comes, and the thread of the right rank goes on.
"""

from __future__ import annotations

import gc
import io
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Final, NoReturn, TextIO

import numpy as np

from holdfast.job import exit_code_of
from holdfast.mindspore import _callbacks, _role, _script
from holdfast.mindspore._between import Held
from holdfast.mindspore._cells import Cells
from holdfast.mindspore._engine import Engine, Phase, say
from holdfast.mindspore._image import memory
from holdfast.mindspore._random import Randomness

_MOST_RANKS: Final = 8  # Each costs the memory of a training.
_LIMIT_S: Final = 60.0  # How long one that is under way may last when the place has come.
_STACK_BYTES: Final = (
    256 << 20
)  # MindSpore's compiler recurses deeply; what is not used costs nothing.


class _Stage:
    """One rank's rehearsal."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.parked = threading.Event()  # The first step was made, or it has ended before.
        self.ready = False
        self.go = threading.Event()
        self.code: int | None = None  # How the program ended.
        self.main: Any = None  # Its module `__main__`, by which pickle finds the script's classes.
        self.thread: threading.Thread | None = None


class _Muted(io.TextIOBase):
    """Standard output that drops what a thread that rehearses prints."""

    def __init__(self, engine: Engine, usual: TextIO) -> None:
        self._engine, self._usual = engine, usual

    def write(self, text: str) -> int:
        """Write, if this thread is the program."""
        return len(text) if self._engine.rehearsing else self._usual.write(text)

    def flush(self) -> None:
        """Flush what is below."""
        self._usual.flush()

    def fileno(self) -> int:
        """Return the descriptor below."""
        return self._usual.fileno()

    def isatty(self) -> bool:
        """Return False."""
        return False


_stages: dict[int, _Stage] = {}


class Scratch:
    """Parameters, callbacks and cells as a rehearsal finds them, which begins a training."""

    def __init__(self, network: Any, callbacks: list[Any]) -> None:
        """Remember them."""
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
        """Make them what they were."""
        for parameter, value in self._kept:
            np.copyto(memory(parameter), value)
        self._cells.put_changed({})
        for held in self._held:
            held.put_back()


def rehearse(network: Any, inputs: tuple[Any, ...]) -> None:
    """Make a step on scratch state."""
    outputs = network(*inputs)
    for part in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
        if hasattr(part, "asnumpy"):
            part.asnumpy()


def wait(engine: Engine, randomness: Randomness) -> None:
    """Wait for the place, where a rehearsal has made its step."""
    gc.collect()  # Its data pipeline, whose threads would draw in the midst of the next rehearsal.
    rank = engine.thread.rank
    assert rank is not None
    park(_stages[rank], ready=True)
    randomness.give_back()


def park(stage: _Stage, ready: bool) -> None:
    """Wait until the place of this rank, which may never come, is this process's."""
    stage.ready, stage.main = ready, sys.modules["__main__"]
    stage.parked.set()
    stage.go.wait()


def stop_here(engine: Engine) -> None:
    """End a rehearsal whose program has a loop of its own: that one would really train."""
    if engine.rehearsing and engine.thread.rank is not None:
        park(_stages[engine.thread.rank], ready=False)


def _play(engine: Engine, stage: _Stage, program: Callable[[], Any]) -> None:
    engine.thread.rank = stage.rank
    try:
        program()
        code = 0
    except SystemExit as end:
        code = exit_code_of(end.code)
        if not isinstance(end.code, (int, type(None))):
            print(end.code, file=sys.stderr)
    except BaseException:
        if not engine.rehearsing:
            traceback.print_exc()
        code = 1
    stage.code = code
    stage.parked.set()


def begin_anew(rank: int) -> NoReturn:
    """End a spare whose program may have read its rank from the environment before it had one."""
    say(
        f"the program reads RANK_ID or DEVICE_ID, which this spare had not when it began; it "
        f"ends, and a new process takes the place of rank {rank}"
    )
    os._exit(1)


def _begin_anew_if_told_another(rank: int) -> None:
    if rank and _script.asks_for_rank():
        begin_anew(rank)


def _program() -> Callable[[], Any] | None:
    """Return what runs this process's program again from its top."""
    # Only what comes to Model.train stops before it does lasting things.
    if not _script.calls_train():
        return None
    script = sys.argv[0]
    folder = os.path.dirname(os.path.abspath(script))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return lambda: runpy.run_path(script, run_name="__main__")


def lead(engine: Engine) -> None:
    """Rehearse all ranks, wait for the place, let its rank go on; then end the process.

    Returns only if there is nothing to rehearse, or if the rank's rehearsal did not come to a step.
    """
    program = _program()
    if program is None or engine.world_size > _MOST_RANKS:
        _begin_anew_if_told_another(engine.place.rank)
        return
    sys.stdout = _Muted(engine, sys.stdout)
    main = sys.modules["__main__"]
    engine.set_phase(Phase.ECHO)
    place, fresh = threading.Event(), Randomness()

    def rehearse_all() -> None:
        for rank in range(engine.world_size):
            if place.is_set():
                return
            fresh.give_back()
            _role.tell_rank(os.environ, rank)
            stage = _stages[rank] = _Stage(rank)
            stage.thread = threading.Thread(
                target=_play, args=(engine, stage, program), name=f"rank-{rank}", daemon=True
            )
            stage.thread.start()
            stage.parked.wait()
        say(f"this spare has rehearsed all {engine.world_size} ranks and waits for a place")

    usual = threading.stack_size(_STACK_BYTES)
    director = threading.Thread(target=rehearse_all, name="rehearsal", daemon=True)
    director.start()
    rank = engine.place.rank
    place.set()
    director.join(_LIMIT_S)  # One under way is finished: the program can not be stopped in it.
    if director.is_alive():
        # Its thread would go on as if it had the place.
        say(
            f"the program has not come to Model.train within {_LIMIT_S:g} s in this spare's "
            "rehearsal, so this process ends and a new one takes the place; `--spares=0` if the "
            "program waits for something that only a real start brings"
        )
        os._exit(1)
    threading.stack_size(usual)
    _role.tell_rank(os.environ, rank)
    stage = _stages.get(rank)
    if stage is None or not stage.ready or stage.code is not None:
        engine.chosen.set()
        engine.set_phase(Phase.EARLY)
        # MindSpore's compiler looks names up there (parse/namespace.py), and a rehearsal that has
        # stopped left its own.
        sys.modules["__main__"] = main
        fresh.give_back()  # The program, which waits in get_rank() or the like, goes on from there.
        _begin_anew_if_told_another(rank)
        say("this spare had not rehearsed its rank yet, so it starts the program now")
        return
    assert stage.thread is not None
    sys.modules["__main__"] = stage.main
    engine.chosen.set()
    stage.go.set()
    stage.thread.join()
    sys.stdout.flush()
    raise SystemExit(stage.code)
