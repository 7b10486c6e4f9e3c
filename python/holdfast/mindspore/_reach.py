"""Variables of the program's that functions of its callbacks use, as if a callback held them.

`losses = []` at the top of a script, or in the function that makes a LambdaCallback, is what the
callback's function adds to; and a class's own list, `class Record(Callback): losses = []`.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable, Iterator, Sequence
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, Final

from holdfast.mindspore._things import draws, is_of_the_program, is_thing

_LASTING: Final = (list, dict, set, bytearray)  # Those that change in place.
_MOST_FUNCTIONS: Final = 200
_NONE: Final = object()

_Place = tuple[Callable[[], Any], Callable[[Any], None]]


class Reach:
    """Of all callbacks that a program has used so far."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._places: dict[str, _Place] = {}
        self._seen: set[Any] = set()

    def look(self, call: int, callbacks: Sequence[Any]) -> None:
        """Look at the callbacks of a call of Model.train; each process does so in the same order.

        The names are those of all processes, so what is found first counts.
        """
        for i, callback in enumerate(callbacks):
            if not hasattr(callback, "__dict__"):
                continue
            for kind in _classes_of(callback):
                for name, value in vars(kind).items():
                    if _is_lasting(value):
                        self._add(f"{kind.__qualname__}.{name}", kind, name)
            done: list[FunctionType] = []
            for function in _functions_of(callback):
                _follow(function, done)
            for function in done:
                self._add_variables(f"{call}.{i}", function)

    def _add_variables(self, whose: str, function: FunctionType) -> None:
        codes = list(_codes_of(function.__code__))
        names = {name for code in codes for name in code.co_names}
        stored = {name for code in codes for name in _stored(code)}
        variables = function.__globals__
        module = variables.get("__name__", "")
        for name in sorted(names & variables.keys()):
            if name in stored or _is_lasting(variables[name]):
                self._add(f"{module}.{name}", variables, name)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            if name in stored or _is_lasting(_content(cell)):
                self._add(f"{whose}.{function.__qualname__}.{name}", cell, "cell_contents")

    def _add(self, called: str, owner: Any, name: str) -> None:
        if (id(owner), name) in self._seen:
            return
        self._seen.add((id(owner), name))
        while called in self._places:  # Such as two lambdas of one line.
            called += "'"
        if type(owner) is dict:
            self._places[called] = lambda: owner.get(name, _NONE), lambda v: owner.update({name: v})
        elif isinstance(owner, CellType):
            self._places[called] = (
                lambda: _content(owner),
                lambda value: setattr(owner, name, value),
            )
        else:
            self._places[called] = lambda: vars(owner).get(name), lambda v: setattr(owner, name, v)

    def held(self) -> dict[str, Any]:
        """Return all variables, as vars() of a callback does."""
        found = ((called, get()) for called, (get, _) in self._places.items())
        return {called: value for called, value in found if value is not _NONE}

    def put(self, called: str, value: Any) -> None:
        """Set one."""
        if called in self._places:
            self._places[called][1](value)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # It is empty yet.
        return _NONE


def _is_lasting(value: Any) -> bool:
    """Return whether a value may change without being another."""
    if type(value).__name__ == "ndarray" or draws(value):
        return True
    return isinstance(value, _LASTING) or _is_deque(value) or is_thing(type(value))


def _is_deque(value: Any) -> bool:
    return type(value).__module__ == "collections" and hasattr(value, "extend")


def _classes_of(callback: Any) -> Iterator[type]:
    return (kind for kind in type(callback).__mro__ if is_of_the_program(kind))


def _functions_of(callback: Any) -> Iterator[Any]:
    if isinstance(callback, (FunctionType, MethodType, functools.partial)):
        yield callback
        return
    yield from vars(callback).values()
    for kind in _classes_of(callback):
        yield from vars(kind).values()


def _follow(found: Any, done: list[FunctionType]) -> None:
    """Add a function of the program's, and those that it uses."""
    if isinstance(found, functools.partial):
        found = found.func
    if isinstance(found, (MethodType, staticmethod, classmethod)):
        found = found.__func__
    if isinstance(found, property):
        found = found.fget
    if not isinstance(found, FunctionType) or len(done) >= _MOST_FUNCTIONS:
        return
    found = getattr(found, "__wrapped__", found)
    if not isinstance(found, FunctionType) or any(found is one for one in done):
        return
    if not is_of_the_program(found):
        return
    done.append(found)
    names = {name for code in _codes_of(found.__code__) for name in code.co_names}
    for name in sorted(names & found.__globals__.keys()):
        _follow(found.__globals__[name], done)
    for cell in found.__closure__ or ():
        _follow(_content(cell), done)


def _codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes_of(constant)


@functools.lru_cache(512)
def _stored(code: CodeType) -> frozenset[str]:
    """Return the variables of others that a code sets: `global` and `nonlocal` ones."""
    others = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF"}
    return frozenset(i.argval for i in dis.get_instructions(code) if i.opname in others)
