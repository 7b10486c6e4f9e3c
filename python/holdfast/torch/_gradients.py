"""Find out whether the gradients that a step leaves behind matter to the next one.

They do not matter if the program drops them before it uses them again, as with `zero_grad()` in
each step. Then they need not be copied. A program that does not drop them in every step goes on
with them, so an image has to hold them. The first steps of a job show which kind it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from holdfast._errors import UserError
from holdfast.torch._kept import Kept
from holdfast.torch._optimizers import local, parameters_of
from holdfast.torch._private import is_flat

_ENOUGH: Final = 2  # Steps in a row: a program may drop them every second step.


class Gradients:
    """Watches the gradients that were there when a step with an update ended."""

    def __init__(self, kept: Kept) -> None:
        """Take the models' parameters. Call watch() later, after a spare's pass of zeros."""
        self._parameters = [tensor for key, tensor in kept.walk(False) if key[0] == "model"]
        self._places = {id(parameter): i for i, parameter in enumerate(self._parameters)}
        self._drops = 0  # Steps in a row that dropped all.
        self._needed = False
        self._zeroed = False  # Left gradients are zeros, not None, and so updated, too.
        # By the parameter's place: the gradient left. Held, so that no other gets its address.
        self._left: dict[int, Tensor] = {}
        self._updated = False  # The last step that ended made an update.
        self._looked = False  # A left gradient was seen in the step under way.
        self._hooks: list[Any] = []
        self._one = -1  # The parameter that is watched when all is known.

    def _is_known(self) -> bool:
        return self._needed or self._drops >= _ENOUGH

    def _watch(self) -> None:
        """Look at plain parameters before a backward pass adds to them, until all is known.

        DDP puts a new gradient where the dropped one was, so its address would not tell. FSDP sets
        its own gradients, at another address if they were dropped.
        """
        if self._needed:
            self._unwatch()
            self._left.clear()
        elif self._drops >= _ENOUGH and (self._one < 0 or not self._hooks):
            self._unwatch()
            few = [i for i in self._can_be_watched() if i in self._left or not self._left]
            self._one = min(few, key=lambda i: self._parameters[i].numel(), default=-1)
            self._left = {i: gradient for i, gradient in self._left.items() if i == self._one}
            self._hook([self._one] if few else [])
        elif not self._is_known() and not self._hooks:
            self._hook(self._can_be_watched())

    def _can_be_watched(self) -> list[int]:
        return [
            i
            for i, parameter in enumerate(self._parameters)
            if parameter.requires_grad and local(parameter) is parameter and not is_flat(parameter)
        ]

    def _hook(self, places: list[int]) -> None:
        self._hooks = [
            self._parameters[i].register_hook(self._looker(i))  # type: ignore[no-untyped-call]
            for i in places
        ]

    def _unwatch(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _looker(self, i: int) -> Callable[[Tensor], None]:
        def look(_: Tensor) -> None:
            if self._left.pop(i, None) is None:
                return  # No gradient was left, or this is a later pass of the step.
            self._looked = True
            gradient = self._parameters[i].grad
            if gradient is None:
                return
            self._see_left(gradient)

        return look

    def _see_left(self, gradient: Tensor) -> None:
        if bool(local(gradient).detach().any()):
            if self._drops >= _ENOUGH:
                raise UserError(
                    "this step adds to gradients that an update left, and the first steps dropped "
                    "such gradients, so State does not keep them; drop them in every step that "
                    "makes an update: optimizer.zero_grad()"
                )
            self._needed = True
        else:
            self._zeroed = True

    def see_update(self, optimizer: torch.optim.Optimizer) -> None:
        """Look at left gradients that an optimizer has used without a backward pass before."""
        if not self._left or self._is_known():
            return
        for parameter in parameters_of(optimizer):
            before = self._left.pop(self._places.get(id(parameter), -1), None)
            if before is None:
                continue
            self._looked = True
            now = parameter.grad
            if now is None or local(now).data_ptr() != local(before).data_ptr():
                continue
            # If it was zeroed in place and filled again, that looks the same and counts as left.
            self._see_left(now)

    def end_step(self, has_updated: bool) -> bool:
        """End a step; return whether its image has to hold the gradients."""
        if not self._is_known():
            there = {i: p.grad for i, p in enumerate(self._parameters) if p.grad is not None}
            if any(gradient.layout is not torch.strided for gradient in there.values()):
                raise UserError(
                    "a step left a sparse gradient, which State does not keep; drop it after the "
                    "update, optimizer.step() and then optimizer.zero_grad(), or make what has it, "
                    "as nn.Embedding, with sparse=False"
                )
            if self._looked or (has_updated and not there):
                self._drops += 1
            self._looked = False
            if has_updated:
                self._left = there
        elif not self._needed and has_updated and self._one >= 0:
            gradient = self._parameters[self._one].grad
            self._left = {} if gradient is None else {self._one: gradient}
        self._updated = has_updated
        if self._hooks:
            self._watch()
        return self._needed or not has_updated or self._drops < _ENOUGH

    def objects(self) -> Any:
        """Return what an image has to hold of this object."""
        zeroed: list[int] = []
        if self._zeroed and self._is_known() and not self._needed:
            zeroed = [i for i, p in enumerate(self._parameters) if p.grad is not None]
        return self._drops, self._needed, self._zeroed, self._updated, zeroed

    def restore(self, objects: Any) -> None:
        """Go on from an image whose gradients, if any, are restored already. Call watch() next."""
        self._drops, self._needed, self._zeroed, self._updated, zeroed = objects
        self._looked = False
        for i in zeroed:
            if self._parameters[i].grad is None:
                self._parameters[i].grad = torch.zeros_like(self._parameters[i])
        self._unwatch()

    def watch(self) -> None:
        """Watch the gradients from here on, as they are now."""
        self._left.clear()
        if self._updated:
            self._left = {i: p.grad for i, p in enumerate(self._parameters) if p.grad is not None}
        self._watch()
