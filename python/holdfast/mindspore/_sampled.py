"""Note what a step depends on and makes, if the step is recorded for a rehearsal, or is one.

The notes of a rank and of a process that rehearses its step are compared in their order
(docs/rehearsals.md): the batch, and what is kept after the step. Gradients lie within MindSpore's
graph, so they are compared by what the rank gives to their sums.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from holdfast._core import RESULTS, Session
from holdfast._digest import digest
from holdfast._sampling import FirstSteps
from holdfast.mindspore import _callbacks
from holdfast.mindspore._bulk import Form

# The objects that are compared whole; _parts() takes the others apart. Model.train keeps "epoch",
# "step" and "batch". State keeps "at" and "base". Both keep "call" and "cells".
_PLAIN: Final = ("call", "epoch", "step", "batch", "at", "base", "cells")


class Sampled:
    """The notes of the steps of one state. Not thread-safe."""

    def __init__(self, session: Session) -> None:
        """Note nothing until a step is sampled."""
        self._session = session
        self._first_steps = FirstSteps()
        self.on = False  # The step under way is sampled.
        self.callbacks: Sequence[Any] = ()  # Those of Model.train's call.

    def begin(self, is_first: bool) -> None:
        """Begin a step. `is_first`: of its epoch."""
        self.on = self._first_steps.sample(self._session, is_first)

    def begun(self, names: Sequence[str], arrays: Sequence[Any]) -> None:
        """Note the parameters as the step begins: callbacks may have changed them."""
        self._arrays(names, arrays, "as the step begins")

    def batch(self, batch: Any) -> None:
        """Note what the step is made of."""
        if self.on:
            self._note("its batch", batch)

    def kept(self, names: Sequence[str], arrays: Sequence[Any], objects: dict[str, Any]) -> None:
        """Note what is kept after the step: parameters by name, and the objects."""
        if not self.on:
            return
        self._session.note(RESULTS, b"")
        self._arrays(names, arrays, "after the step")
        for name, thing in self._parts(objects):
            self._note(f"{name} after the step", thing)

    def _arrays(self, names: Sequence[str], arrays: Sequence[Any], when: str) -> None:
        for name, array in zip(names, arrays):
            note = f"`{name}` {when}"
            self._session.note(note, f"{array.dtype}{array.shape}".encode())
            self._session.note_at(note, array.ctypes.data, array.nbytes)

    def _parts(self, objects: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        yield from ((f"`{name}`", objects[name]) for name in _PLAIN if name in objects)
        if "outputs" in objects:
            yield "what the network returns", objects["outputs"]
        for name, kept in objects.get("named", {}).items():
            yield from _contents(f"`{name}`", kept)
        if packed := objects.get("vars"):
            yield from ((f"`run.{name}`", value) for name, value in pickle.loads(packed).items())
        for name, packed in of_callbacks(self.callbacks, objects):
            yield f"?{name}", packed

    def _note(self, name: str, thing: Any) -> None:
        """Note a thing, of which `bytes` are a pickle. If it can not be digested, note its type."""
        try:
            found = digest(pickle.loads(thing) if type(thing) is bytes else thing)
        except Exception:  # The training never ends by that.
            found = type(thing).__qualname__
        self._session.note(name, found.encode())


def of_callbacks(callbacks: Sequence[Any], objects: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield, pickled, what is kept of a program's own callbacks: by callback and attribute.

    MindSpore's hold times, and those that write do nothing in a rehearsal.
    """
    for callback, kept in zip(callbacks, objects.get("callbacks", ())):
        if not _callbacks.of_mindspore(callback) and not _callbacks.writes(callback):
            yield from _contents(f"callback {type(callback).__name__}", kept)


def _contents(whose: str, kept: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for name, packed in kept.items():
        attribute = name[1] if isinstance(name, tuple) else name
        if not isinstance(packed, Form):  # Each process numbers its files itself.
            yield f"{whose}: {attribute}", packed
