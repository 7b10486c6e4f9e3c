"""What the body of a program's loop leaves in its variables, for a replacement that passes over it.

`print(epoch, loss.item())` after a pass reads what only a step sets. A process that was started
again, and has no step of that pass to make, is given what its predecessor's last step left there:
small values alone, of what the body sets and of what this process has not set.
"""

from __future__ import annotations

import ctypes
import dis
import inspect
import numbers
import pickle
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from holdfast.torch._frames import callers, variables_of

_VALUE_LIMIT: Final = 1 << 12  # Bytes, and so are the next.
_LIMIT: Final = 1 << 15  # Every step's image holds them.
_DEPTH: Final = 3  # Lists within lists.
_PLAIN: Final = (type(None), bool, int, float, complex, str, bytes)
_HERE: Final = str(Path(__file__).parent)
_NOTHING: Final = object()


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
        room = _LIMIT
        for name, value in list(variables_of(loop).items()):
            copied = _NOTHING if name.startswith("_") else _copied(value, _DEPTH)
            if copied is _NOTHING:
                continue
            room -= len(pickle.dumps((name, copied)))
            if room < 0:
                break
            kept[name] = copied
        self._values = pickle.dumps((kept, _set_in_body(loop)))

    def give_back(self, frame: FrameType | None) -> None:
        """Set in the loop around `frame` what its body would have, and what it has not set."""
        loop = _loop_around(frame)
        if loop is None or _identity(loop) != self._of:
            return
        now = loop.f_locals
        is_module = now is loop.f_globals
        own = (*loop.f_code.co_varnames, *loop.f_code.co_cellvars)
        values, in_body = pickle.loads(self._values)
        for name, value in values.items():
            if (name not in now or name in in_body) and (is_module or name in own):
                now[name] = value
        if not is_module and sys.version_info < (3, 13):  # What debuggers do; later it is written.
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(loop), ctypes.c_int(0))


def _loop_around(frame: FrameType | None) -> FrameType | None:
    """Return who goes through the steps: no part of Holdfast, no progress bar's generator."""
    for f in callers(frame):
        if (
            not f.f_code.co_filename.startswith(_HERE)
            and not f.f_code.co_flags & inspect.CO_GENERATOR
        ):
            return f
    return None


def _set_in_body(loop: FrameType) -> set[str]:
    """Return what the body of the `for` that `loop` is at sets."""
    code = list(dis.get_instructions(loop.f_code))
    ends = [i.argval for i in code if i.offset == loop.f_lasti and i.opname == "FOR_ITER"]
    return {
        str(i.argval)
        for i in code
        if ends and loop.f_lasti < i.offset < ends[0] and i.opname.startswith("STORE_")
    }


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
    if depth and type(value) in (list, tuple, dict) and len(value) <= _VALUE_LIMIT // 8:
        parts = list(value.items()) if isinstance(value, dict) else list(value)
        copies = [_copied(part, depth - 1) for part in parts]
        return _NOTHING if any(c is _NOTHING for c in copies) else type(value)(copies)
    return _NOTHING
