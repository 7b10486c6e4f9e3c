"""Objects of the program's own classes, such as a meter with a sum and a count, as data."""

from __future__ import annotations

import copy
import random
import sys
from functools import lru_cache
from typing import Any, Final

import numpy as np

_NOT_THE_PROGRAM_S: Final = sys.stdlib_module_names | {
    "holdfast",
    "mindio_ttp",
    "mindspore",
    "numpy",
}


def is_thing(kind: Any) -> bool:
    """Return whether all that objects of a class hold is in their attributes."""
    return _is_thing(kind)


@lru_cache(256)
def _is_thing(kind: Any) -> bool:
    if not kind.__dictoffset__ or issubclass(kind, type):
        return False
    bases = [base for base in kind.__mro__ if base is not object]
    foreign = (base.__module__.partition(".")[0] in _NOT_THE_PROGRAM_S for base in bases)
    return bool(bases) and not any(foreign) and not any("__slots__" in vars(b) for b in bases)


def draws(value: Any) -> bool:
    """Return whether it is a random generator of Python's or NumPy's."""
    return type(value) in (random.Random, np.random.RandomState, np.random.Generator)


class Drawer:
    """A random generator, by where it stands."""

    def __init__(self, state: Any, of: Any = None) -> None:
        """`of`: itself, in the process that has it."""
        self.state, self.of = state, of

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the generator itself out."""
        return Drawer, (self.state,)

    def into(self, like: Any) -> Any:
        """Return the generator, which stands there; `like`: what the program has there now."""
        made = self.of if self.of is not None else like
        if not draws(made):
            raise LookupError
        if isinstance(made, random.Random):
            made.setstate(self.state)
        elif isinstance(made, np.random.RandomState):
            made.set_state(self.state)
        else:
            made.bit_generator.state = self.state
        return made


def drawer(generator: Any) -> Drawer:
    """Return where a generator stands."""
    if isinstance(generator, random.Random):
        return Drawer(generator.getstate(), generator)
    if isinstance(generator, np.random.RandomState):
        return Drawer(generator.get_state(), generator)
    return Drawer(copy.deepcopy(generator.bit_generator.state), generator)


def is_of_the_program(made: Any) -> bool:
    """Return whether a class or function is of a file of the program's own."""
    name = getattr(made, "__module__", None) or ""
    if name.partition(".")[0] in _NOT_THE_PROGRAM_S:
        return False
    code = getattr(made, "__code__", None)
    file = code.co_filename if code else getattr(sys.modules.get(name), "__file__", None)
    return not any(place in (file or "") for place in ("site-packages", "dist-packages"))


class Thing:
    """An object without its class, which a process that only reads the state has not."""

    def __init__(self, kind: tuple[str, str], held: dict[str, Any], of: Any = None) -> None:
        """`held`: its attributes; `of`: itself, in the process that has it."""
        self.kind, self.held, self.of = kind, held, of

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the object itself out."""
        return Thing, (self.kind, self.held)

    def into(self, like: Any) -> Any:
        """Return the object that gets the attributes; `like`: what the program has there now."""
        if self.of is not None:
            return self.of
        if like is not None and named(type(like)) == self.kind:
            return like
        made: Any = sys.modules.get(self.kind[0])
        for name in self.kind[1].split("."):
            made = getattr(made, name, None)
        if not isinstance(made, type):
            raise LookupError
        return object.__new__(made)


def named(kind: type) -> tuple[str, str]:
    """Return the name by which a class is found again."""
    return kind.__module__, kind.__qualname__
