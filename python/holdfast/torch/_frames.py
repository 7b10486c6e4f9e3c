"""Look at who calls."""

from __future__ import annotations

import inspect
import opcode
from collections.abc import Iterator
from types import FrameType
from typing import Final

_AT_YIELD: Final = ("YIELD_VALUE", "RESUME")


def callers(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield `frame`, and outwards who called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def loop_was_left(frame: FrameType | None) -> bool:
    """Whether the loop over a generator that is closed was left by `break` or `return`.

    `frame` is that of who closes it: an exception leaves a loop elsewhere. A generator around it,
    as a progress bar's, is closed in its turn; frames of the file of `frame` only hand on.
    """
    own = frame.f_code.co_filename if frame is not None else ""
    for f in callers(frame):
        instruction = opcode.opname[f.f_code.co_code[f.f_lasti]] if f.f_lasti >= 0 else ""
        is_closed = f.f_code.co_flags & inspect.CO_GENERATOR and instruction in _AT_YIELD
        if f.f_code.co_filename != own and not is_closed:
            # The latter: a step that an islice() or zip() around the generator does not go beyond.
            return instruction in ("POP_TOP", "POP_ITER", "FOR_ITER")  # The second: Python 3.14.
    return False
