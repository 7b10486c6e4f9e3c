"""The random generators from which a program draws data: Python's, NumPy's, and the data's seed."""

from __future__ import annotations

import hashlib
import pickle
import random
from typing import Any, Final

import numpy as np

from holdfast import _generators
from holdfast.mindspore import _pipeline

_UNSEEDED: Final = 5489  # mindspore.dataset's "no seed was set".


def states() -> bytes:
    """Return the states of Python's and NumPy's generators."""
    return pickle.dumps(_generators.get_states(), pickle.HIGHEST_PROTOCOL)


def give_back(kept: bytes) -> None:
    """Set the generators to states from states()."""
    _generators.set_states(*pickle.loads(kept))


def seed_from(base: bytes, place: str) -> None:
    """Seed both generators from a state of this rank and from a place in the training."""
    drawn = hashlib.sha256(base + place.encode()).digest()
    random.seed(drawn)
    np.random.seed(np.frombuffer(drawn, np.uint32))


def seed_data(seed: int) -> None:
    """Give data pipelines a seed without seeding both generators, as MindSpore would."""
    from mindspore import dataset

    kept = states()
    dataset.config.set_seed(seed)
    give_back(kept)


class DataSeed:
    """Gives data a seed if the program does not, so that a successor sees the same order."""

    def __init__(self) -> None:
        """Begin without a seed."""
        self._given = _UNSEEDED

    def give(self, data: Any, rank: int, number: int) -> None:
        """Seed the data read next, the `number`-th in all. Shards of one set get one seed."""
        from mindspore import dataset

        if dataset.config.get_seed() in (_UNSEEDED, self._given):
            own = 0 if _pipeline.is_sharded(data) else rank
            self._given = 20_000 + own + 1000 * number
            seed_data(self._given)

    def take_back(self) -> None:
        """Remove the seed, so that data sets made next do not get it: shards depend on the seed."""
        from mindspore import dataset

        if dataset.config.get_seed() == self._given:
            seed_data(_UNSEEDED)


def everything() -> tuple[int, bytes]:
    """Return the data's seed and the states of the generators."""
    from mindspore import dataset

    return dataset.config.get_seed(), states()


def give_everything_back(kept: tuple[int, bytes]) -> None:
    """Set the data's seed and the generators to what everything() returned."""
    seed_data(kept[0])
    give_back(kept[1])
