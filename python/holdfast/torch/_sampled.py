"""Note what a step depends on and makes, if the step is recorded for a rehearsal, or is one.

The notes of a rank and of whoever rehearses its step are compared in their order
(docs/rehearsals.md): the batch, the gradients before any sum, and what is kept after the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from holdfast._digest import digest, tensor_bytes
from holdfast.torch._engine import Engine
from holdfast.torch._kept import Kept
from holdfast.torch._optimizers import local


def everything_in(kept: Kept) -> Iterator[tuple[str, Any]]:
    """Yield tensors and plain objects, each with the name that a person would look for."""
    for key, tensor in kept.walk(False):
        yield ".".join(str(part).strip(".") for part in key[1:]), tensor
    objects = kept.objects()
    yield from objects["others"].items()
    yield from ((f"run.{name}", value) for name, value in kept.values.all.items())
    yield from ((f"{name}.param_groups", groups) for name, groups in objects["groups"].items())
    for what in ("loose", "extras", "requires_grad", "training"):
        yield what, objects[what]


class Sampled:
    """The notes of the steps of one State. Not thread-safe."""

    def __init__(self, engine: Engine, kept: Kept) -> None:
        """Note nothing until a step is sampled."""
        self._engine = engine
        self._kept = kept
        self._hooks: list[Any] = []
        self.on = False  # The step under way is sampled.

    def begin(self) -> None:
        """Begin a step, before its batch is used."""
        session = self._engine.session
        self.on = session is not None and session.sample()
        if self.on:
            for key, parameter in self._kept.parameters:
                if parameter.requires_grad and parameter.is_leaf and local(parameter) is parameter:
                    note: Any = self._gradient_of(".".join(key[1:]))
                    watch: Any = parameter.register_post_accumulate_grad_hook
                    self._hooks.append(watch(note))

    def _gradient_of(self, name: str) -> Callable[[Tensor], None]:
        def note(parameter: Tensor) -> None:
            self._note(f"the gradient of `{name}` before the sum", parameter.grad)

        return note

    def batch(self, batch: Any) -> Any:
        """Note what the step is made of, and return it."""
        if self.on:
            self._note("its batch", batch)
        return batch

    def end(self) -> None:
        """Note what is kept after the step. Requires: its sums have ended."""
        if self.on:
            for name, thing in everything_in(self._kept):
                self._note(f"`{name}` after the step", thing)

    def leave(self) -> None:
        """Note nothing more of this step."""
        self.on = False
        while self._hooks:
            self._hooks.pop().remove()

    def _note(self, name: str, thing: Any) -> None:
        session = self._engine.session
        if session is None:
            return
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
