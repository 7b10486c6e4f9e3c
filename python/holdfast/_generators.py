"""The states of the random generators of Python and, if the program has loaded it, NumPy."""

from __future__ import annotations

import random
import sys
from typing import Any


def get_states() -> tuple[Any, Any]:
    """Return the states of Python's and of NumPy's generator."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy and numpy.random.get_state()


def set_states(of_python: Any, of_numpy: Any) -> None:
    """Set the states that get_states() has returned."""
    random.setstate(of_python)
    numpy = sys.modules.get("numpy")
    if numpy is not None and of_numpy is not None:
        numpy.random.set_state(of_numpy)
