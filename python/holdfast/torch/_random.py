"""Derive the random generators from (seed, rank, step), so that none of them has to be carried."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

_MOST: Final = 64  # A program may seed anew before each pass, and every image holds them.
_PASSES: Final[dict[int, tuple[int, int]]] = {}  # First and last, by the program's seed for them.
# What reseed() set in this process, and for which seed of the program's.
_LAST: Final[WeakKeyDictionary[torch.Generator, tuple[int, int]]] = WeakKeyDictionary()


def derive(*parts: int | str) -> int:
    """Return 63 bits that depend on all parts."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_all(seed: int) -> None:
    """Seed torch's generators of all devices, Python's, and NumPy's where it is loaded."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)


def get_states() -> tuple[Any, ...]:
    """Return where the CPU's generators are."""
    numpy = sys.modules.get("numpy")
    return torch.get_rng_state(), random.getstate(), numpy and numpy.random.get_state()


def set_states(states: tuple[Any, ...]) -> None:
    """Let them go on from there."""
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy = sys.modules.get("numpy")
    if numpy is not None and states[2] is not None:
        numpy.random.set_state(states[2])


def reseed(generator: torch.Generator, seed: int, epoch: int) -> None:
    """Seed a generator for a pass over data; `seed` is the program's for it."""
    _note(seed, epoch, epoch)
    own = derive(seed, "epoch", epoch)
    generator.manual_seed(own)
    _LAST[generator] = own, seed


def seed_of(generator: torch.Generator) -> int:
    """Return the seed that the program gave a generator last.

    Since then reseed() may have set another one, here or in a process before this one: a state that
    is brought back has that.
    """
    now = generator.initial_seed()
    own, seed = _LAST.get(generator, (None, 0))
    if own == now:
        return seed
    for seed, (first, last) in reversed(_PASSES.items()):
        if any(derive(seed, "epoch", epoch) == now for epoch in range(last, first - 1, -1)):
            return seed
    return now


def passes_of_seeds() -> dict[int, tuple[int, int]]:
    """Return what an image has to hold, so that seed_of() is right in another process."""
    return _PASSES.copy()


def add_passes_of_seeds(passes: dict[int, tuple[int, int]]) -> None:
    """Know what an image holds of them."""
    for seed, (first, last) in passes.items():
        _note(seed, first, last)


def _note(seed: int, first: int, last: int) -> None:
    known = _PASSES.pop(seed, (first, last))
    _PASSES[seed] = min(first, known[0]), max(last, known[1])
    if len(_PASSES) > _MOST:
        del _PASSES[next(iter(_PASSES))]
