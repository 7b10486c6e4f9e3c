"""Derive the random generators from (seed, rank, step), so that none of them has to be carried."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

_SEEDS: Final[WeakKeyDictionary[torch.Generator, int]] = WeakKeyDictionary()


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


def seed_of(generator: torch.Generator) -> int:
    """Return the seed that the program gave a generator, as it was when first asked for here.

    Passes over data set another one since, and so does a state that is brought back.
    """
    return _SEEDS.setdefault(generator, generator.initial_seed())


def note_seeds(thing: Any, depth: int = 3) -> None:
    """Have seed_of() know the seeds of `thing`, or of a loader's or a sampler's generators."""
    if isinstance(thing, torch.Generator):
        seed_of(thing)
    elif depth and not isinstance(thing, torch.nn.Module):
        for name in ("generator", "sampler", "batch_sampler"):
            if (part := getattr(thing, name, None)) is not None:
                note_seeds(part, depth - 1)
