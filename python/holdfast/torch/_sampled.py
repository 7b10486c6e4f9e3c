"""Note what a step depends on and makes, if the step is recorded for a rehearsal, or is one.

The notes of a rank and of whoever rehearses its step are compared in their order
(docs/rehearsals.md): the batch, the gradients before any sum, and what is kept after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast._core import RESULTS, Session
from holdfast._digest import digest, tensor_bytes
from holdfast._sampling import FirstSteps
from holdfast.torch._engine import Engine
from holdfast.torch._kept import Kept
from holdfast.torch._optimizers import local
from holdfast.torch._plan import Key
from holdfast.torch._position import Progress


def everything_in(
    kept: Kept, tensors: Iterable[tuple[Key, Tensor]], objects: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield tensors and plain objects, each with the name that a person would look for.

    `tensors`, `objects`: what kept.walk() and kept.objects() have returned.
    """
    for key, tensor in tensors:
        is_gradient = key[0] == "gradient"
        name = ".".join(str(part).strip(".") for part in key[2 if is_gradient else 1 :])
        yield f"the gradient of {name}" if is_gradient else name, tensor
    yield from objects["others"].items()
    yield from ((f"run.{name}", value) for name, value in kept.values.all.items())
    yield from ((f"{name}.param_groups", groups) for name, groups in objects["groups"].items())
    for what in ("loose", "extras", "requires_grad", "training"):
        yield what, objects[what]


class Sampled:
    """The notes of the steps of one State. Not thread-safe."""

    def __init__(self, engine: Engine, kept: Kept, progress: Progress) -> None:
        """Note nothing until a step is sampled."""
        self._engine = engine
        self._kept = kept
        self._progress = progress
        self._first_steps = FirstSteps()
        self._hooks: list[Any] = []
        self.on = False  # The step under way is sampled.

    def begin(self) -> None:
        """Begin a step, before its batch is used."""
        session = self._engine.session
        at = self._progress.position
        # Of its pass, so the program's code between two passes comes before it.
        is_first = not at.own and at.index <= 1 and self._progress.n > 0
        self.on = session is not None and self._first_steps.sample(session, is_first)
        if self.on:
            for key, parameter in self._kept.parameters:
                if parameter.requires_grad and parameter.is_leaf and local(parameter) is parameter:
                    note: Any = self._gradient_of(".".join(key[1:]))
                    watch: Any = parameter.register_post_accumulate_grad_hook
                    self._hooks.append(watch(note))

    def see_that_nothing_was_guessed(self) -> None:
        """End a rehearsal that answered, on its way, what the other ranks exchanged there."""
        if self._engine.seat.rehearses and self._engine.guessed:
            self._engine.seat.worker.rehearsal_skips(
                "the program exchanges something between steps, which a replacement can not be "
                "told again (after a fault all start again): nothing can be compared. "
                "state.once(f) keeps what f exchanges"
            )

    def _gradient_of(self, name: str) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            self._note(f"the gradient of `{name}` before the sum", parameter.grad)

        return note

    def batch(self, batch: Any) -> Any:
        """Note what the step is made of, and return it."""
        if self.on:
            self._note("its batch", batch)
        return batch

    def kept(self, tensors: Iterable[tuple[Key, Tensor]], objects: dict[str, Any]) -> None:
        """Note what is kept after the step: what its commit writes, so nothing is asked twice."""
        if self.on and self._engine.session is not None:
            self._engine.session.note(RESULTS, b"")
            self._note("whether to stop", self._progress.wish)
            for name, thing in everything_in(self._kept, tensors, objects):
                self._note(f"`{name}` after the step", thing)

    def end(self) -> None:
        """Note no more gradients of this step."""
        while self._hooks:
            self._hooks.pop().remove()

    def leave(self) -> None:
        """Note nothing more of this step."""
        self.on = False
        self.end()

    def _note(self, name: str, thing: Any) -> None:
        """Note a thing. What can not be digested is noted by its name alone."""
        session = self._engine.session
        if session is None:
            return
        try:
            self._digest(session, name, thing)
        except Exception:  # The training never ends by that.
            session.note(name, type(thing).__qualname__.encode())

    def _digest(self, session: Session, name: str, thing: Any) -> None:
        if isinstance(thing, Tensor) and _lies_in_one_piece(tensor := local(thing).detach()):
            # Its type and its size belong to what it is.
            session.note(name, f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            session.note_at(name, tensor.data_ptr(), tensor.numel() * tensor.element_size())
        elif (found := tensor_bytes(thing)) is not None:
            session.note(name, found[0].encode())
            session.note(name, found[1])
        else:
            session.note(name, digest(thing).encode())


def _lies_in_one_piece(tensor: Tensor) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return False
    special = tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg()
    return not special and tensor.is_contiguous()
