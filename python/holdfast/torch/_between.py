"""What the program changes between two passes over data, as a scheduler's step per epoch.

The image of a step is made when the step ends, so it does not have these changes. A survivor whose
next step is void gets them back from here; a replacement makes them again by running the program.
"""

from __future__ import annotations

import pickle

import torch
from torch import Tensor

from holdfast.torch._kept import Kept
from holdfast.torch._optimizers import local
from holdfast.torch._plan import Key


class Between:
    """The difference between an image and what is there now."""

    @torch.no_grad()
    def __init__(self, kept: Kept, image: dict[Key, Tensor], same: bool = False) -> None:
        """`image`: the tensors of the last step. `same`: nothing was changed since."""
        # Gradients that are kept may be zeroed now; those that the program drops are not kept.
        self._with_gradients = any(key[0] == "gradient" for key in image)
        now = dict(kept.walk(self._with_gradients))
        self._tensors = {
            key: tensor.detach().clone()
            for key, tensor in (() if same else now.items())
            if key not in image or not torch.equal(image[key], local(tensor).detach())
        }
        self._keys = set(now)
        self._distributed = {key for key, tensor in now.items() if local(tensor) is not tensor}
        self._objects = pickle.dumps(kept.objects(), pickle.HIGHEST_PROTOCOL)
        self._generators: list[tuple[torch.Generator, Tensor]] = []

    def note_order(self, generators: list[torch.Generator]) -> None:
        """Have these be as they are now: the pass's order was drawn from them since."""
        self._generators = [(generator, generator.get_state()) for generator in generators]

    @torch.no_grad()
    def put_back(self, kept: Kept) -> None:
        """Make the changes again. Requires: everything is as in the image."""
        tensors = {
            key: local(self._tensors.get(key, there)).detach()
            for key, there in {**dict(kept.walk(self._with_gradients)), **self._tensors}.items()
            if key in self._keys
        }
        objects = pickle.loads(self._objects)
        kept.restore(tensors, self._distributed, objects, self._with_gradients)
        for generator, state in self._generators:
            generator.set_state(state)
