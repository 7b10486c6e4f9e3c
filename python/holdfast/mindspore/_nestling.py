"""Be a program's process after the fork from the nursery: as if Python had just been started."""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib.machinery
import os
import signal
import struct
import sys
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any, Final, NoReturn

from holdfast._nursery_request import Request
from holdfast.job import exit_code_of
from holdfast.mindspore import _role
from holdfast.mindspore._hook import help_to_save

_ANSWER: Final = struct.Struct("<Ii")  # As in apps/nursling.cc.
_LEAVING: Final = 3
_NAME: Final = "mindspore"


class _Adopter:
    """Finds mindspore where it has been imported already; its import then only applies the shims.

    Its modules are hidden until then: else `from mindspore.nn import Dense` would find one of them
    without asking for the package itself.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._environment = dict(os.environ)
        self._modules = {
            name: module
            for name, module in sys.modules.items()
            if name == _NAME or name.startswith(_NAME + ".")
        }
        for name in self._modules:
            del sys.modules[name]
        self._spec: importlib.machinery.ModuleSpec | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a spec by which the module that is there is taken."""
        if name != _NAME:
            return None
        # Nothing else is done here: a program may only ask whether MindSpore is there.
        self._spec = self._modules[_NAME].__spec__
        loader: Any = self
        spec = importlib.machinery.ModuleSpec(_NAME, loader, is_package=True)
        spec.origin = getattr(self._spec, "origin", None)
        return spec

    def _start_anew(self) -> NoReturn:
        """Become a process that imports by itself: what was imported knows another environment."""
        changed = {k for k, _ in set(os.environ.items()) ^ set(self._environment.items())}
        print(
            f"holdfast: the program sets {', '.join(sorted(changed))} before it imports MindSpore, "
            "so it is started again from its top, without the nursery; HOLDFAST_NURSERY=0 saves "
            "that",
            file=sys.stderr,
            flush=True,
        )
        os.execve(self._request.argv[0], self._request.argv, self._request.environment)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Give the module that is there, if what it knows is still so."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        _role.before_import(help_to_save)
        if dict(os.environ) != self._environment:
            self._start_anew()
        return self._modules[_NAME]

    def exec_module(self, module: ModuleType) -> None:
        """Put all modules back and apply the shims."""
        module.__spec__ = self._spec
        for name, hidden in self._modules.items():
            sys.modules.setdefault(name, hidden)
        from holdfast.mindspore import _boot

        _boot.finish(_boot.begin())


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
    """Do what Python does with an exception that nobody catches."""
    trace = _without_ours(error.__traceback__)
    error.__traceback__ = trace
    last: Any = sys
    last.last_type, last.last_value, last.last_traceback = type(error), error, trace
    sys.excepthook(type(error), error, trace)


def run(request: Request) -> NoReturn:
    """Run the script to its end."""
    gc.enable()
    gc.unfreeze()
    script = request.argv[2]
    sys.argv[:] = request.argv[2:]
    sys.orig_argv[:] = request.argv
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    _draw_anew()
    _role.tell_ranks(os.environ)
    sys.meta_path.insert(0, _Adopter(request))
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
    with contextlib.suppress(OSError):  # It counts where the nursery is gone by then.
        request.connection.send(_ANSWER.pack(_LEAVING, known & 0xFF))
    raise SystemExit(status)


def _draw_anew() -> None:
    """Give this process random numbers of its own; those of Python's random are, since the fork.

    MindSpore's generator begins with seed 0 in every process that imports it; so it does here.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
