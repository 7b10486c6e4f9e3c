"""What the program changes between two passes over data, as a scheduler's step per epoch.

The image of a step is made when the step ends, so it does not have these changes. A survivor whose
next step is void gets them back from here; a replacement makes them again by running the program.
Unless its loop begins past them, at the epoch of a snapshot that was written after them: then it
takes them from a file of its predecessor's in the job's folder.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from holdfast.torch._files import write_whole
from holdfast.torch._image import Kept, Key
from holdfast.torch._optimizers import local


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
        self._objects = pickle.dumps(kept.objects(), pickle.HIGHEST_PROTOCOL)
        self._generators: list[tuple[torch.Generator, Tensor]] = []

    def note_order(self, generators: list[torch.Generator]) -> None:
        """Have these be as they are now: the pass's order was drawn from them since."""
        self._generators = [(generator, generator.get_state()) for generator in generators]

    @torch.no_grad()
    def put_back(self, kept: Kept) -> None:
        """Make the changes again. Requires: everything is as in the image."""
        keys = set(self._keys)
        if not self._with_gradients:
            keys.update(key for key, _ in kept.walk(True) if key[0] == "gradient")
        kept.change(self._tensors, keys, pickle.loads(self._objects))
        for generator, state in self._generators:
            generator.set_state(state)

    def hand_on(self, kept: Kept, path: Path, at: tuple[int, int], passed_over: bool) -> bool:
        """Leave this to a successor; or, `passed_over`, take a predecessor's. False: it has none.

        `at`: the version it follows, and the pass that begins.
        """
        if not passed_over:
            self._save(path, at)
        elif self._load(path, at):
            self.put_back(kept)
        else:
            return False
        return True

    def _save(self, path: Path, at: tuple[int, int]) -> None:
        """Write this for a successor."""
        tensors = {key: local(tensor) for key, tensor in self._tensors.items()}
        with suppress(OSError):  # There is no room; _load() finds nothing then.
            path.unlink(missing_ok=True)
            write_whole(path, pickle.dumps((at, tensors, self._keys, self._objects)))

    def _load(self, path: Path, at: tuple[int, int]) -> bool:
        """Become what a predecessor wrote. False: it wrote none at this place."""
        with suppress(OSError):
            then, tensors, keys, objects = pickle.loads(path.read_bytes())
            if then == at:
                self._tensors, self._keys, self._objects = tensors, keys, objects
                return True
        return False
