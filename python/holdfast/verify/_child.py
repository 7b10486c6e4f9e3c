"""Starts and watches a program in a process of a run: python -m holdfast.verify._child PROGRAM ...

The parent has written a plan into the file that _HOLDFAST_VERIFY names.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import os
import random
import runpy
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "_HOLDFAST_VERIFY"


class _Finder:
    """Import hook that calls a function when a certain module has been imported."""

    def __init__(self, name: str, then: Callable[[types.ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            usual = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                usual(module)
                self._then(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _seed(rank: int | None) -> None:
    """Seed by rank and attempt: equal draws in each run, but other draws in a successor."""
    life = os.environ.get("HOLDFAST_ATTEMPT", "0") if rank is not None else "spare"
    number = random.Random(f"{rank} {life}").getrandbits(31)
    random.seed(number)
    with contextlib.suppress(ImportError):
        import numpy

        numpy.random.seed(number)


def _watch(plan: dict[str, Any], rank: int | None) -> None:
    from holdfast.verify._note import Notes
    from holdfast.verify._output import Output
    from holdfast.verify._places import Kill, Places
    from holdfast.verify._served import Pushes, save_at_the_end
    from holdfast.verify._writes import watch_writes

    notes = Notes(plan["folder"], rank)
    notes("life", pid=os.getpid(), spare=rank is None)
    output = Output(notes)
    if rank is not None:
        output.open(rank)
    output.watch()
    watch_writes(notes, plan["elsewhere"])
    places = Places([Kill(**kill) for kill in plan["kills"]], plan["folder"], notes)
    pushes = Pushes()

    def observe(seat: Any, *views: Callable[[Any], Any]) -> Any:
        from holdfast.verify._observer import Observer

        return Observer(seat, notes, places, output, plan, pushes, *views)

    def watch_torch(module: types.ModuleType) -> None:
        from holdfast.torch._sampled import everything_in
        from holdfast.verify._contents import things_of

        def all_of(state: Any) -> Any:
            kept = state.kept
            return everything_in(kept, kept.walk(False), kept.objects())

        def made(seat: Any) -> Any:
            places.watch_torch()
            return observe(seat, all_of, things_of, lambda s: save_at_the_end(s, plan["folder"]))

        module.observer_factory = made  # type: ignore[attr-defined]
        pushes.watch()

    def watch_mindspore(module: types.ModuleType) -> None:
        from holdfast.verify._mindspore import watch_steps

        watch_steps(module, places, observe)
        pushes.watch()

    for name, watch in (
        ("holdfast.torch._engine", watch_torch),
        ("holdfast.mindspore._steps", watch_mindspore),
    ):
        finder: Any = _Finder(name, watch)
        sys.meta_path.insert(0, finder)


def _rank() -> int | None:
    """Return this process's rank; None if it still waits for one, or is the scheduler."""
    given = os.environ.get("RANK", os.environ.get("MS_NODE_ID", ""))
    if os.environ.get("MS_ROLE") != "MS_WORKER" or os.environ.get("HOLDFAST_SPARE_FD"):
        return None
    return int(given) if given.isdecimal() else None


def _run(program: str) -> None:
    """Run a file as `python PROGRAM` would; it stays __main__ to the end of the process."""
    module = types.ModuleType("__main__")
    module.__dict__.update(
        __file__=os.path.abspath(program), __builtins__=__builtins__, __cached__=None
    )
    sys.modules["__main__"] = module
    code = compile(Path(program).read_bytes(), os.path.abspath(program), "exec")
    exec(code, module.__dict__)


def main() -> None:
    """Do what the command line and the plan say."""
    plan = json.loads(Path(os.environ[VARIABLE]).read_text())
    words = sys.argv[1:]
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    rank = _rank()
    _seed(rank)
    _watch(plan, rank)
    if is_module:
        sys.path[0] = os.getcwd()
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
        _run(sys.argv[0])


if __name__ == "__main__":
    main()
