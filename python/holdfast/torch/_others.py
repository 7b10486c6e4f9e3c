"""Read and put back the contents of generators, containers, and objects with state_dict()."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

from holdfast._vars import into


def can_be_kept(thing: Any) -> bool:
    """Return whether this is a generator, a container, or has state_dict(), load_state_dict()."""
    if is_generator(thing) or isinstance(thing, (dict, list, set)):
        return True
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def is_generator(thing: Any) -> bool:
    """Return whether this is a generator of random numbers."""
    return isinstance(thing, (torch.Generator, random.Random)) or _of_numpy(thing) is not None


def is_common(generator: Any) -> bool:
    """Return whether this is the generator that torch, random or NumPy draws from by default."""
    numpy = sys.modules.get("numpy")
    of_numpy = getattr(numpy.random.rand, "__self__", None) if numpy is not None else None
    of_python = getattr(random.random, "__self__", None)
    return any(generator is common for common in (torch.default_generator, of_python, of_numpy))


def contents_of(thing: Any) -> Any:
    """Return the contents of `thing`, to be pickled."""
    if isinstance(thing, torch.Generator):
        return thing.get_state()
    if isinstance(thing, random.Random):
        return thing.getstate()
    if isinstance(thing, (dict, list, set)) and not hasattr(thing, "state_dict"):
        return thing
    kind = _of_numpy(thing)
    if kind is not None:
        return thing.get_state(legacy=False) if kind == "state" else thing.bit_generator.state
    return thing.state_dict()


def put_back(thing: Any, contents: Any) -> None:
    """Put `contents` back into `thing`."""
    if isinstance(thing, torch.Generator):
        thing.set_state(contents)
    elif isinstance(thing, random.Random):
        thing.setstate(contents)
    elif isinstance(thing, (dict, list, set)) and not hasattr(thing, "state_dict"):
        into(thing, contents if type(contents) is type(thing) else type(thing)(contents))
    elif (kind := _of_numpy(thing)) is not None:
        if kind == "state":
            thing.set_state(contents)
        else:
            thing.bit_generator.state = contents
    else:
        thing.load_state_dict(contents)
        if isinstance(thing, torch.amp.GradScaler):  # In case a step was left after unscale_().
            vars(thing).get("_per_optimizer_states", {}).clear()


def _of_numpy(thing: Any) -> str | None:
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(thing, numpy.random.RandomState):
        return "state"
    return "generator" if isinstance(thing, numpy.random.Generator) else None
