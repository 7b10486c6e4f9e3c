"""Run a program in a process forked from a nursery, as if Python had just been started."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.machinery
import os
import signal
import struct
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any, Final, NoReturn

from holdfast._nursery_request import Request
from holdfast.job import exit_code_of

_ANSWER: Final = struct.Struct("<Ii")  # As in apps/python/nursling.cc.
_LEAVING: Final = 3


def _main_module(path: str) -> ModuleType:
    module = ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    module.__dict__.update(
        __file__=path, __cached__=None, __builtins__=builtins, __loader__=loader, __annotations__={}
    )
    sys.modules["__main__"] = module
    return module


def _without_ours(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _show(error: BaseException) -> None:
    """Do the same as Python does with an exception that nobody catches."""
    trace = _without_ours(error.__traceback__)
    error.__traceback__ = trace
    last: Any = sys
    last.last_type, last.last_value, last.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)


def run(request: Request, begin: Callable[[], None]) -> NoReturn:
    """Call begin(), then run the script to its end."""
    gc.enable()
    gc.unfreeze()
    script = request.argv[2]
    sys.argv[:] = request.argv[2:]
    sys.orig_argv[:] = request.argv
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    _draw_anew()
    begin()
    path = os.path.abspath(script)
    try:
        with open(path, "rb") as source:
            code = compile(source.read(), path, "exec")
        exec(code, _main_module(path).__dict__)
        status: Any = 0
    except SystemExit as end:
        status = end.code
    except KeyboardInterrupt as error:
        _show(error)
        status = 128 + signal.SIGINT
    except BaseException as error:
        _show(error)
        status = 1
    known = exit_code_of(status)
    with contextlib.suppress(OSError):  # For the case that the nursery has ended by then.
        request.connection.send(_ANSWER.pack(_LEAVING, known & 0xFF))
    raise SystemExit(status)


def _draw_anew() -> None:
    """Seed NumPy's generator anew, so that forked processes draw different numbers.

    Python seeds its own at a fork. MindSpore's begins with seed 0 in every process, forked or not.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
