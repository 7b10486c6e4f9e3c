"""What a program's data is drawn with, all of it the process's: Python's, NumPy's, the seeds."""

from __future__ import annotations

import pickle
import random

import numpy as np


def states() -> bytes:
    """Return where Python's and NumPy's generators stand."""
    return pickle.dumps((random.getstate(), np.random.get_state()), pickle.HIGHEST_PROTOCOL)


def give_back(kept: bytes) -> None:
    """Bring the generators to where they stood."""
    of_python, of_numpy = pickle.loads(kept)
    random.setstate(of_python)
    np.random.set_state(of_numpy)


def seed_data(seed: int) -> None:
    """Give data pipelines a seed, and nothing else: MindSpore seeds both generators as well."""
    from mindspore import dataset

    kept = states()
    dataset.config.set_seed(seed)
    give_back(kept)


class Randomness:
    """All of it as it is now.

    Rehearsals of several ranks share it, so each begins with that of a fresh process, and the rank
    that goes on gets back what it had when its training began.
    """

    def __init__(self) -> None:
        """Remember it."""
        from mindspore import dataset

        self._seed, self._states = dataset.config.get_seed(), states()

    def give_back(self) -> None:
        """Make it what it was."""
        seed_data(self._seed)
        give_back(self._states)
