"""Look at who calls."""

from __future__ import annotations

import ctypes
import dis
import gc
import inspect
import opcode
import sys
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, Final

# Of a frame to its variables: its own, two functions' here, the call's; and the caller's stack.
_REFERENCES: Final = 4 if sys.version_info >= (3, 11) else 5
_AT_YIELD: Final = ("YIELD_VALUE", "RESUME")
_PLACES: Final = ("NAME", "FAST", "GLOBAL", "DEREF", "ATTR", "SUBSCR")
_LEAVING: Final = {  # What lets go of an iterator, and seldom raises there.
    "POP_TOP",
    "POP_ITER",  # Of Python 3.14.
    "FOR_ITER",
    *(f"{what}_{where}" for what in ("STORE", "DELETE") for where in _PLACES),
}


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield `frame`, and outwards who called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def offset_of(frame: FrameType) -> int:
    """Return which instruction a frame is at.

    In Python 3.12 it is at what follows a `for` over a generator, the second time and later.
    """
    at, code = frame.f_lasti, frame.f_code.co_code
    while at > 0 and opcode.opname[code[at]] == "CACHE":
        at -= 2
    return at


def variables_of(frame: FrameType) -> dict[str, Any]:
    """Return a function's variables; the frame does not hold them for that.

    Before Python 3.13 it keeps what it gives: an iterator that the program drops would not be
    closed, and a step's batch would live through the next.
    """
    kept = frame.f_locals
    found = dict(kept)
    _let_go(frame, kept)
    return found


def set_variables(frame: FrameType, values: dict[str, Any]) -> None:
    """Set those of a function's variables that are its own, or a module's."""
    now = frame.f_locals
    own = (*frame.f_code.co_varnames, *frame.f_code.co_cellvars, *frame.f_code.co_freevars)
    is_optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    now.update({name: v for name, v in values.items() if not is_optimized or name in own})
    if is_optimized and sys.version_info < (3, 13):  # What debuggers do; later it is written.
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
    _let_go(frame, now)


def _let_go(frame: FrameType, kept: Any) -> None:
    if sys.version_info >= (3, 13) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return
    if sys.getrefcount(kept) <= _REFERENCES:
        kept.clear()
        return
    for name in [name for name, value in kept.items() if isinstance(value, Iterator)]:
        del kept[name]  # The program has called locals(), and has the rest.


def loop_was_left(frame: FrameType | None) -> bool:
    """Whether the loop over a generator that is closed was left by `break` or `return`.

    Or, where `next()` is called for each, `del` or `close()`. `frame` is that of who closes it: an
    exception leaves a loop elsewhere. A generator around it, as a progress bar's, is closed in its
    turn; frames of the file of `frame` only hand on.
    """
    own = frame.f_code.co_filename if frame is not None else ""
    for f in callers(frame):
        instruction = opcode.opname[f.f_code.co_code[offset_of(f)]] if f.f_lasti >= 0 else ""
        is_closed = f.f_code.co_flags & inspect.CO_GENERATOR and instruction in _AT_YIELD
        if f.f_code.co_filename != own and not is_closed:
            # The latter: a step that an islice() or zip() around the generator does not go beyond.
            if instruction == "FOR_ITER" and _raises(f):
                return False
            return instruction in _LEAVING or _calls_close(f)
    return False


def _raises(frame: FrameType) -> bool:
    """Whether an exception comes out of the instruction that a frame is at.

    As from the other loader of a zip(), or from a loop within the step. It is not told, so its
    trace is looked for, which has this place; up to Python 3.11 the exception itself has none yet.
    """
    return any(
        type(thing) is TracebackType and thing.tb_frame is frame and thing.tb_lasti == frame.f_lasti
        for thing in gc.get_objects()
    )


def _calls_close(frame: FrameType) -> bool:
    before = [i for i in dis.get_instructions(frame.f_code) if i.offset < frame.f_lasti]
    loads = [i.argval for i in before[-3:] if i.opname in ("LOAD_METHOD", "LOAD_ATTR")]
    return loads[-1:] == ["close"]
