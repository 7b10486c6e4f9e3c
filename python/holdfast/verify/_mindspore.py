"""Watches the steps of a MindSpore program, by wrapping the class Steps of holdfast.mindspore.

A step here is everything that is committed at once: a step of Model.train or of state.steps, a
state.once, or the end of an epoch. A step has three places: its beginning ("forward"), a moment in
the middle ("backward"), and its end ("update"). A graph is one piece, its sums included, so there
are no other places.
"""

from __future__ import annotations

import pickle
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.verify._observer import Observer
from holdfast.verify._places import Places


class _Kept:
    """The part of a State that an Observer uses, taken from Steps."""

    def __init__(self, steps: Any) -> None:
        self.steps = steps

    @property
    def n(self) -> int:
        """The number of steps that are done."""
        return int(self.steps.n)

    def stop(self) -> None:
        """Do nothing: the length of Model.train is the program's own."""


def _contents(kept: _Kept) -> Iterator[tuple[str, Any]]:
    """Yield everything that is kept, by name."""
    from holdfast.mindspore._sampled import of_callbacks

    steps = kept.steps
    yield from zip(steps._image._names, steps._image._parameters)
    yield from _parts("", {n: thing for n, thing in steps.objects.items() if n != "callbacks"})
    for name, packed in of_callbacks(steps.sampled.callbacks, steps.objects):
        yield name, pickle.loads(packed)


def _parts(prefix: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict) and thing and all(isinstance(key, str) for key in thing):
        for key, value in thing.items():
            yield from _parts(f"{prefix}.{key}" if prefix else key, value)
    else:
        yield prefix, thing


def watch_steps(
    module: types.ModuleType, places: Places, make: Callable[[Any, Any], Observer]
) -> None:
    """Have an observer follow the steps of `module` (holdfast.mindspore._steps)."""
    kind = module.Steps
    usual_init, usual_begin, usual_end = kind.__init__, kind.begin, kind.end
    watching: dict[str, Any] = {"seconds": 0.0, "began": 0.0}

    def init(self: Any, engine: Any, *rest: Any, **named: Any) -> None:
        usual_init(self, engine, *rest, **named)
        place = types.SimpleNamespace(rank=int(engine.rank))
        watching["observer"] = make(types.SimpleNamespace(place=place), _contents)
        _watch_files_and_evaluations(places)
        watching["observer"].opened(_Kept(self))

    def begin(self: Any, is_first: bool = False) -> None:
        usual_begin(self, is_first)
        watching["observer"].began(self.n + 1)
        places.at("forward")
        watching["began"] = time.monotonic()
        kill = places.past("backward")
        if kill is not None:
            timer = threading.Timer(watching["seconds"] / 2, places.make, (kill,))
            timer.daemon = True
            timer.start()

    def end(self: Any, describe: Any) -> bool:
        observer, n = watching["observer"], self.n + 1
        watching["seconds"] = time.monotonic() - watching["began"]
        places.at("update")
        if observer.voids(n):
            self.give_up()
            observer.was_void(n)
            return False
        done = bool(usual_end(self, describe))
        if done:
            observer.done(n)
        else:
            observer.was_void(n)
        return done

    kind.__init__, kind.begin, kind.end = init, begin, end


def _watch_files_and_evaluations(places: Places) -> None:
    """Report each evaluation and each saved checkpoint as a place."""
    import mindspore
    from mindspore.train import serialization

    usual_eval, usual_save = mindspore.train.Model.eval, serialization._exec_save

    def eval_(self: Any, *arguments: Any, **named: Any) -> Any:
        places.at("evaluation")
        return usual_eval(self, *arguments, **named)

    def save(*arguments: Any, **named: Any) -> Any:
        places.at("save")
        return usual_save(*arguments, **named)

    mindspore.train.Model.eval, serialization._exec_save = eval_, save
