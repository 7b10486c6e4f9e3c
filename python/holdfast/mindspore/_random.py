"""What a program's data is drawn with, all of it the process's: Python's, NumPy's, the seeds."""

from __future__ import annotations

import hashlib
import pickle
import random
from typing import Any, Final

import numpy as np

from holdfast.mindspore import _pipeline

_UNSEEDED: Final = 5489  # mindspore.dataset's "no seed was set".


def states() -> bytes:
    """Return where Python's and NumPy's generators stand."""
    return pickle.dumps((random.getstate(), np.random.get_state()), pickle.HIGHEST_PROTOCOL)


def give_back(kept: bytes) -> None:
    """Bring the generators to where they stood."""
    of_python, of_numpy = pickle.loads(kept)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def seed_from(base: bytes, place: str) -> None:
    """Set both generators by what this rank's had stood at, and a place in the training."""
    drawn = hashlib.sha256(base + place.encode()).digest()
    random.seed(drawn)
    np.random.seed(np.frombuffer(drawn, np.uint32))


def seed_data(seed: int) -> None:
    """Give data pipelines a seed, and nothing else: MindSpore seeds both generators as well."""
    from mindspore import dataset

    kept = states()
    dataset.config.set_seed(seed)
    give_back(kept)


class DataSeed:
    """Gives data a seed if the program does not: a successor has to see the same order."""

    def __init__(self) -> None:
        """None was given yet."""
        self._given = _UNSEEDED

    def give(self, data: Any, rank: int, number: int) -> None:
        """Give one to what is read next, the `number`-th of all.

        Where each rank reads its part of one order, it is the same on all ranks, as MindSpore's is.
        """
        from mindspore import dataset

        if dataset.config.get_seed() in (_UNSEEDED, self._given):
            own = 0 if _pipeline.is_sharded(data) else rank
            self._given = 20_000 + own + 1000 * number
            seed_data(self._given)

    def take_back(self) -> None:
        """Let a data set that is made next see none: its part of all depends on the seed."""
        from mindspore import dataset

        if dataset.config.get_seed() == self._given:
            seed_data(_UNSEEDED)


def everything() -> tuple[int, bytes]:
    """Return the data's seed, and where the generators stand."""
    from mindspore import dataset

    return dataset.config.get_seed(), states()


def give_everything_back(kept: tuple[int, bytes]) -> None:
    """Make all what it was."""
    seed_data(kept[0])
    give_back(kept[1])
