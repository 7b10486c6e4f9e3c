"""Apply the shims when, and only when, a program imports mindspore.

The path of a started process begins with the folder `_site`, whose sitecustomize calls install().
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from holdfast.mindspore import _role

_NAME = "mindspore"


def help_to_save() -> NoReturn:
    """Become a helper, which takes a lost process's place during the last checkpoint."""
    from holdfast.mindspore import _helper

    _helper.run()


class _Loader:
    """Loads MindSpore as it is, then applies the shims."""

    def __init__(self, loader: importlib.machinery.SourceFileLoader, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> object:
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Make the module as usual. First act in roles that need no MindSpore."""
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self._finder]
        _role.before_import(help_to_save)
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run MindSpore's own code between the two halves of Holdfast's start."""
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        if os.environ.get("MS_ROLE") in _role.SERVING:
            from holdfast.mindspore import _scheduler

            return _scheduler.run(lambda: self._loader.exec_module(module))
        from holdfast.mindspore import _boot

        engine = _boot.begin()
        self._loader.exec_module(module)
        _boot.finish(engine)


class _Finder:
    """Finds only mindspore, in its usual place."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return MindSpore's own spec with our loader around its own."""
        if name != _NAME:
            return None
        # Only find: a program may just ask whether MindSpore is installed.
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(spec.loader, self)  # type: ignore[assignment]
        return spec


def install() -> None:
    """Watch for the import of mindspore."""
    if os.environ.get("HOLDFAST_MINDSPORE_OFF"):
        return
    if _NAME in sys.modules:
        raise RuntimeError("holdfast.mindspore.install() comes too late: mindspore is imported")
    _role.tell_ranks(os.environ)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
