"""Derive the random generators from (seed, rank, step), so that none of them has to be carried."""

from __future__ import annotations

import hashlib
import random
import sys
from typing import Any

import torch


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
