"""Tell where a call comes from, and whether a program may come from one such place to another."""

from __future__ import annotations

import dis
from types import CodeType, FrameType

from holdfast.torch._frames import callers, offset_of

Place = tuple[tuple[CodeType, int], ...]  # Of each function on the stack, the outermost first.


def place_of(frame: FrameType) -> Place:
    """Return where a call comes from."""
    return tuple((f.f_code, offset_of(f)) for f in callers(frame))[::-1]


def are_in_one_loop(earlier: Place, later: Place) -> bool:
    """Whether a function that both calls come from may make the earlier one after the later."""
    for (code, before), (other, after) in zip(earlier, later):
        if code is not other:
            return False
        for i in dis.get_instructions(code):
            if i.opcode in (*dis.hasjrel, *dis.hasjabs) and i.argval <= before and after < i.offset:
                return True
        if before != after:
            return False
    return False
