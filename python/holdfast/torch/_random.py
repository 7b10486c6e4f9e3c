"""Set the random generators from (the program's seeds, step), so that no state has to be kept.

The generators of torch, Python and NumPy each follow the seed that the program gave them on this
rank. So ranks with equal seeds go on drawing equal numbers, and ranks with different seeds others.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import sys
from collections.abc import MutableMapping
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import torch

from holdfast import _generators
from holdfast._vars import raw_bytes

# By generator: the seed that reseed() has set, and the program's seed from which that follows.
# Before torch 2.7 there are no weak references to generators, so they are kept.
_LAST: Final[MutableMapping[torch.Generator, tuple[int, int]]] = (
    WeakKeyDictionary() if torch.Generator.__weakrefoffset__ else {}
)


def derive(*parts: int | str) -> int:
    """Return 63 bits that depend on all parts."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


class Seeds(NamedTuple):
    """One seed for each library that has a random generator."""

    torch: int
    python: int
    numpy: int

    def derive(self, *parts: int | str) -> Seeds:
        """Return seeds that depend on these and on all parts."""
        return Seeds(*(derive(seed, *parts) for seed in self))

    def set(self) -> None:
        """Seed torch's generator of the CPU, Python's, and NumPy's where it is loaded."""
        torch.default_generator.manual_seed(self.torch)
        random.seed(self.python)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self.numpy & 0xFFFFFFFF)


def seeds_of_the_program() -> Seeds:
    """Return torch's seed, and digests of the states of Python's and NumPy's generators."""
    own = torch.initial_seed()
    numpy = sys.modules.get("numpy")
    return Seeds(
        own, _digest(random.getstate()), _digest(numpy.random.get_state()) if numpy else own
    )


def _digest(state: Any) -> int:
    return derive(hashlib.blake2b(pickle.dumps(state), digest_size=8).hexdigest())


def whereabouts() -> bytes:
    """Return the states of the CPU's generators as bytes, to be compared."""
    of_torch, *others = get_states()
    return raw_bytes(of_torch) + pickle.dumps(others)


def get_states() -> tuple[Any, ...]:
    """Return the states of the CPU's generators."""
    return torch.get_rng_state(), *_generators.get_states()


def set_states(states: tuple[Any, ...]) -> None:
    """Set the states of the CPU's generators."""
    torch.set_rng_state(states[0])
    _generators.set_states(*states[1:])


def reseed(generator: torch.Generator, seed: int, epoch: int) -> None:
    """Seed a generator for a pass over data. `seed`: what the program gave it."""
    note(generator, seed, epoch)
    generator.manual_seed(_LAST[generator][0])


def note(generator: torch.Generator, seed: int, epoch: int) -> None:
    """Note the program's seed of a generator, as reseed() does, but leave the generator."""
    _LAST[generator] = derive(seed, "epoch", epoch), seed


def seed_of(generator: torch.Generator) -> int:
    """Return the seed that the program last gave a generator, whatever reseed() has set since."""
    now = generator.initial_seed()
    own, seed = _LAST.get(generator, (None, 0))
    return seed if own == now else now


def seed_of_rank_0(generator: torch.Generator) -> int:
    """Return what seed_of() returns on rank 0. All ranks have to call it."""
    seed = torch.tensor([seed_of(generator)])
    torch.distributed.broadcast(seed, 0)
    return int(seed.item())
