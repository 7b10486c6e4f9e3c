"""Import mindspore in a process that the nursery has forked, where it is loaded already."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final, NoReturn

from holdfast import _nestling
from holdfast._nursery_request import Request
from holdfast._say import say
from holdfast.mindspore import _role
from holdfast.mindspore._hook import help_to_save

_NAME: Final = "mindspore"


class _Adopter:
    """Finds the mindspore that is loaded already, so that its import only applies the shims.

    Until then, MindSpore's modules are hidden. Otherwise `from mindspore.nn import Dense` would
    find mindspore.nn without importing the package itself.
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
        """Return a spec that takes the module that is loaded already."""
        if name != _NAME:
            return None
        # Only find: a program may just ask whether MindSpore is installed.
        self._spec = self._modules[_NAME].__spec__
        loader: Any = self
        spec = importlib.machinery.ModuleSpec(_NAME, loader, is_package=True)
        spec.origin = getattr(self._spec, "origin", None)
        return spec

    def _start_anew(self) -> NoReturn:
        """Run a new Python that imports by itself, since the environment is no longer the same."""
        changed = {k for k, _ in set(os.environ.items()) ^ set(self._environment.items())}
        say(
            f"the program sets {', '.join(sorted(changed))} before it imports MindSpore, so it is "
            "started again from its top, without the nursery; HOLDFAST_NURSERY=0 saves that"
        )
        os.execve(self._request.argv[0], self._request.argv, self._request.environment)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """Return the loaded module, if the environment is still the one of its import."""
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


def run(request: Request) -> NoReturn:
    """Run the script to its end."""

    def begin() -> None:
        _role.tell_ranks(os.environ)
        sys.meta_path.insert(0, _Adopter(request))

    _nestling.run(request, begin)
