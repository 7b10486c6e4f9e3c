"""Tell how the program ends: well, which ends the training, or so that a successor goes on.

At exit Python does not say with which code. An exception that nobody caught leaves its trace; a
SystemExit does not, so whoever raises one is noted.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from holdfast._errors import UserError
from holdfast.job import exit_code_of
from holdfast.torch._frames import callers

if TYPE_CHECKING:
    from holdfast.torch._engine import Engine


def _is_in_flight(error: BaseException, at: dict[int, int]) -> bool:
    """Whether it was not caught before, in one of the frames that are at these instructions."""
    trace = error.__traceback__  # Python 3.11 enters a frame when it is caught there.
    while trace is not None:
        if at.get(id(trace.tb_frame), trace.tb_lasti) != trace.tb_lasti:
            return False
        trace = trace.tb_next
    return True


def note_an_exit(engine: Engine, error: BaseException | None, frame: FrameType | None) -> None:
    """Where `error` leaves a step: note the code, if it ends the program with one.

    None: it is not known, since a generator that is closed is not told; `frame` is that of who
    closes it, and whoever raised it called from there.
    """
    at = {id(f): f.f_lasti for f in callers(frame)}
    if error is None and any(type(thing) is SystemExit for thing in gc.get_objects()):
        gc.collect()  # Of those that were caught, the ones that hold themselves.
    for thing in [error] if error is not None else gc.get_objects():
        if type(thing) is SystemExit and (thing is error or _is_in_flight(thing, at)):
            engine.exit_code = engine.exit_code or exit_code_of(thing.code)


def end_when_the_program_ends(engine: Engine) -> None:
    """Call end() at a normal exit, and only then."""
    owner = os.getpid()

    def noting(usual: Callable[..., Any]) -> Callable[..., None]:
        def noted(status: Any = None) -> None:
            engine.exit_code = exit_code_of(status)
            usual(status)

        return noted

    sys.exit = noting(sys.exit)  # type: ignore[assignment]
    for name in ("exit", "quit"):
        if hasattr(builtins, name):  # They are not, under `python -S`.
            setattr(builtins, name, noting(getattr(builtins, name)))

    def at_exit() -> None:
        # An exception that nobody caught leaves its trace in sys.last_value.
        if os.getpid() != owner:
            return
        if getattr(sys, "last_value", None) is None and not engine.exit_code:
            try:
                engine.end()
            except UserError as error:
                print(f"holdfast: {error}", file=sys.stderr, flush=True)
                sys.stdout.flush()
                os._exit(1)  # An exception here would leave the code of a good end.

    atexit.register(at_exit)
