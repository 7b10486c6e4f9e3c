"""What the body of a program's loop leaves in its variables, for a replacement that passes over it.

`print(epoch, loss.item())` after a pass reads what only a step sets, `sum(losses) / len(losses)`
what only steps fill. A process that was started again, and has no step of that pass to make, is
given what its predecessor's last step left there: small values alone, of what the body sets, of
containers that it fills and that are empty, and of what this process has not set.
"""

from __future__ import annotations

import dis
import inspect
import numbers
import pickle
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import torch

from holdfast.torch._frames import callers, set_variables, variables_of

_VALUE_LIMIT: Final = 1 << 12  # Bytes, and so are the next.
_LIMIT: Final = 1 << 15  # Every step's image holds them.
_DEPTH: Final = 3  # Lists within lists.
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_HERE: Final = str(Path(__file__).parent)
_NOTHING: Final = object()
_STORES: Final = {f"STORE_{where}" for where in ("NAME", "FAST", "GLOBAL", "DEREF")}
_FILLS: Final = {"append", "extend", "add", "update"}


class _Body(NamedTuple):
    """Names in the body of a loop."""

    sets: set[str]
    fills: set[str]  # By methods of theirs.


class Variables:
    """Those of the function, or the module, that goes through the steps."""

    def __init__(self) -> None:
        """Know none."""
        self._of = ("", "", 0)
        self._values = b""  # By name, pickled.

    def objects(self) -> Any:
        """Return what an image has to hold of this."""
        return self._of, self._values

    def restore(self, objects: Any) -> None:
        """Go on from an image."""
        self._of, self._values = objects

    def note(self, frame: FrameType | None) -> None:
        """Keep what the loop around `frame` has set by now."""
        loop = _loop_around(frame)
        if loop is None:
            return
        self._of = _identity(loop)
        kept: dict[str, Any] = {}
        room, body, there = _LIMIT, _body_of(loop), variables_of(loop)
        wanted = body.sets | body.fills
        for name in sorted(there, key=lambda name: name not in wanted):
            copied = _NOTHING if name.startswith("_") else _copied(there[name], _DEPTH)
            if copied is _NOTHING:
                continue
            size = len(pickle.dumps((name, copied)))
            if size <= room:
                room -= size
                kept[name] = copied
        self._values = pickle.dumps((kept, tuple(body)))

    def give_back(self, frame: FrameType | None, passed_over: bool = True) -> None:
        """Set in the loop around `frame` what is not there.

        `passed_over`: also what the steps of the pass, which are not made here, would have.
        """
        loop = _loop_around(frame)
        if loop is None or _identity(loop) != self._of:
            return
        now = variables_of(loop)
        values, body = pickle.loads(self._values)
        sets, fills = body if passed_over else (set(), set())
        given = {}
        for name, value in values.items():
            if name not in now or name in sets:
                given[name] = value
            elif name in fills and type(now[name]) is type(value) and not now[name]:
                (now[name].extend if isinstance(value, list) else now[name].update)(value)
        set_variables(loop, given)


def _loop_around(frame: FrameType | None) -> FrameType | None:
    """Return who goes through the steps: no part of Holdfast, no progress bar's generator."""
    for f in callers(frame):
        if (
            not f.f_code.co_filename.startswith(_HERE)
            and not f.f_code.co_flags & inspect.CO_GENERATOR
        ):
            return f
    return None


def _body_of(loop: FrameType) -> _Body:
    """Look at the body of the `for` that `loop` is at."""
    code = list(dis.get_instructions(loop.f_code))
    ends = [i.argval for i in code if i.offset == loop.f_lasti and i.opname == "FOR_ITER"]
    inside = [i for i in code if ends and loop.f_lasti < i.offset < ends[0]]
    return _Body(
        {str(i.argval) for i in inside if i.opname in _STORES},
        {
            str(i.argval)
            for i, following in pairwise(inside)
            if i.opname.startswith("LOAD_") and following.argval in _FILLS
        },
    )


def _identity(frame: FrameType) -> tuple[str, str, int]:
    code = frame.f_code
    return code.co_filename, code.co_name, code.co_firstlineno


def _copied(value: Any, depth: int) -> Any:
    """Return a copy of something small and simple, else _NOTHING."""
    if type(value) in _PLAIN:
        return _NOTHING if isinstance(value, (str, bytes)) and len(value) > _VALUE_LIMIT else value
    if type(value) is torch.Tensor:
        is_simple = value.layout is torch.strided and value.device.type == "cpu"
        if not is_simple or value.numel() * value.element_size() > _VALUE_LIMIT:
            return _NOTHING
        return value.detach().clone()
    if isinstance(value, numbers.Number) and type(value).__module__ == "numpy":
        return value
    if depth and type(value) in (list, tuple, dict, set) and len(value) <= _VALUE_LIMIT // 8:
        parts = list(value.items()) if isinstance(value, dict) else list(value)
        copies = [_copied(part, depth - 1) for part in parts]
        return _NOTHING if any(c is _NOTHING for c in copies) else type(value)(copies)
    return _NOTHING
