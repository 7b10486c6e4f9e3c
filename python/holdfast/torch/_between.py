"""What the program changes between two passes over data, as a scheduler's step per epoch.

The image of a step is made when the step ends, so it does not have these changes. A survivor whose
next step is void gets them back from here; a replacement makes them again by running the program.
"""

from __future__ import annotations

import pickle

import torch
from torch import Tensor

from holdfast.torch._image import Kept, Key
from holdfast.torch._optimizers import local


class Between:
    """The difference between an image and what is there now."""

    @torch.no_grad()
    def __init__(self, kept: Kept, image: dict[Key, Tensor], same: bool = False) -> None:
        """`image`: the tensors of the last step. `same`: nothing was changed since."""
        # Gradients that were not used in the last step may be zeroed now; used ones are not kept.
        now = dict(kept.walk(any(key[0] == "gradient" for key in image)))
        self._tensors = {
            key: tensor.detach().clone()
            for key, tensor in (() if same else now.items())
            if key not in image or not torch.equal(image[key], local(tensor).detach())
        }
        self._keys = set(now)
        self._objects = pickle.dumps(kept.objects(), pickle.HIGHEST_PROTOCOL)

    @torch.no_grad()
    def put_back(self, kept: Kept) -> None:
        """Make the changes again. Requires: everything is as in the image."""
        kept.change(self._tensors, self._keys, pickle.loads(self._objects))
