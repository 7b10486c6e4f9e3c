"""See that an item of a data set follows from its index and the global generators.

One that draws from a generator of its own, as `numpy.random.default_rng()`, gives something else
each time it is asked. A step that is made again, or a replacement, would train on other data.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from holdfast._errors import UserError
from holdfast.torch._random import Seeds, get_states, set_states


def see_that_items_can_be_given_again(dataset: Any, seeds: Seeds) -> None:
    """Ask for the first item twice under equal seeds. UserError: it was not the same."""
    before = get_states()
    try:
        if not len(dataset):
            return
        twice = []
        for _ in range(2):
            seeds.set()
            twice.append(dataset[0])
    except Exception:
        return  # It wants other indices, or a worker process that prepares it.
    finally:
        set_states(before)
    if not _are_same(twice[0], twice[1], 0):
        raise UserError(
            f"item 0 of the data set {type(dataset).__name__} is not the same when it is asked "
            "for twice under equal seeds, so a fault would change the data. It draws from a "
            "generator of its own, or counts: draw from torch, random or numpy.random, which are "
            "set for each item, or derive its generator from the index: default_rng(index)"
        )


def _are_same(one: Any, other: Any, depth: int) -> bool:
    if type(one) is not type(other) or depth > 8:
        return type(one) is type(other)
    if isinstance(one, torch.Tensor):
        if one.layout is not torch.strided or one.shape != other.shape or one.dtype != other.dtype:
            return one.layout is not torch.strided
        return torch.equal(one, other) or bool(((one == other) | (one != one)).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            _are_same(part, other[key], depth + 1) for key, part in one.items()
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(
            _are_same(a, b, depth + 1) for a, b in zip(one, other)
        )
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(one, (numpy.ndarray, numpy.generic)):
        return one.tobytes() == other.tobytes() if not one.dtype.hasobject else True
    if isinstance(one, (bool, int, float, complex, str, bytes)):
        return one == other or one != one
    return True  # Nobody knows what makes two of these the same.
