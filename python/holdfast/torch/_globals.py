"""Find which variables of a program's modules its functions change: a loop's body may call any.

`global best; best = loss` in a callback, `history.append(loss)`, `counts[label] += 1`. Which
functions a body comes to is not known, so all of a module count; what no step changes costs little.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType, FunctionType
from typing import Any, Final, NamedTuple

from holdfast.torch._bodies import FILLS, Body, body_of
from holdfast.torch._forms import LIBRARIES
from holdfast.torch._frames import callers

MAIN: Final = "__main__."  # Before the name of what lies in the program's file, not the loop's.
HERE: Final = "__here__."  # Before one that the function with the loop has a variable for, too.
_WRITES: Final = {"STORE_SUBSCR", "STORE_ATTR", "COPY", "DUP_TOP", "DUP_TOP_TWO"}
_NEAR: Final = 4  # Instructions after a variable in which it shows that its parts are written.


class Names(NamedTuple):
    """Of a module's variables."""

    sets: frozenset[str]
    fills: frozenset[str]  # By methods that lists, sets and dicts have for it.
    writes: frozenset[str]  # To their parts, these and others.


_NO_NAMES: Final = Names(frozenset(), frozenset(), frozenset())


_known: dict[tuple[CodeType, int, int], Body] = {}  # Where, and whose module it is.


def body_at(frame: FrameType, at: int) -> Body:
    """Look at the body of the `for` or the `with` at a place of a frame, and what it may call."""
    key = frame.f_code, at, id(frame.f_globals)
    if key not in _known:
        body = body_of(frame.f_code, at)
        if not frame.f_code.co_filename.startswith(LIBRARIES):
            main = vars(sys.modules["__main__"])
            body = _with_names(body, _names_in(frame.f_globals, frame), frame.f_code)
            if frame.f_globals is not main:
                body = _with_names(body, _names_in(main, frame), None)
        _known[key] = body
    return _known[key]


def module_of(name: str, frame: FrameType) -> tuple[dict[str, Any], str]:
    """Return where a variable of a module lies, and its own name there."""
    if name.startswith(MAIN):
        return vars(sys.modules["__main__"]), own_name(name)
    return frame.f_globals, own_name(name)


def own_name(name: str) -> str:
    """Return what the program calls a variable."""
    return name.removeprefix(MAIN).removeprefix(HERE)


def _with_names(body: Body, names: Names, code: CodeType | None) -> Body:
    """Return the body of a function with more names; `code`: None where the module is another."""
    of_module = body.of_module
    if code is None:
        names = _named(names, lambda name: MAIN + name)
    elif code.co_flags & inspect.CO_OPTIMIZED:
        own = {*code.co_varnames, *code.co_cellvars, *code.co_freevars}
        names = _named(names, lambda name: HERE + name if name in own else name)
    if code is None or code.co_flags & inspect.CO_OPTIMIZED:
        of_module = of_module | names.sets | names.writes
    return body._replace(
        carried=body.carried | names.sets,
        reads=body.reads | names.sets | names.writes,
        fills=body.fills | names.fills,
        of_module=of_module,
    )


def _named(names: Names, how: Callable[[str], str]) -> Names:
    return Names(*(frozenset(map(how, part)) for part in names))


def _names_in(module: dict[str, Any], frame: FrameType) -> Names:
    codes = {code for thing in [*module.values()] for code in _codes_of(thing, module)}
    codes.update(  # The module itself, as it runs: what it has in functions and lists, too.
        f.f_code for f in callers(frame) if f.f_globals is module and f.f_code.co_name == "<module>"
    )
    files = {code for code in codes if not code.co_filename.startswith(LIBRARIES)}
    found = [_names_of(code) for code in files]
    names = [frozenset[str]().union(*parts) for parts in zip(*found)] if found else _NO_NAMES
    return Names(*names)


def _codes_of(thing: Any, module: dict[str, Any]) -> Iterator[CodeType]:
    """Yield those of a function of the module, or of a class's methods; behind wrappers too."""
    if isinstance(thing, type):
        if thing.__module__ == module.get("__name__"):
            for part in [*vars(thing).values()]:
                if not isinstance(part, type):
                    yield from _codes_of(part, module)
        return
    for name in ("__func__", "fget", "__wrapped__"):
        inner = getattr(thing, name, None) if callable(thing) or name == "fget" else None
        if isinstance(inner, FunctionType):
            thing = inner
    if isinstance(thing, FunctionType) and thing.__globals__ is module:
        yield thing.__code__


@functools.lru_cache(maxsize=1024)
def _names_of(code: CodeType) -> Names:
    """Look at a function, and at all that are made in it."""
    sets, fills, writes = set(), set(), set()
    instructions = list(dis.get_instructions(code))
    for n, i in enumerate(instructions):
        if i.opname == "STORE_GLOBAL":
            sets.add(i.argval)
        elif i.opname == "LOAD_GLOBAL":
            after = instructions[n + 1 : n + 1 + _NEAR]
            if after and after[0].argval in FILLS:
                fills.add(i.argval)
            if any(a.opname in _WRITES for a in after):
                writes.add(i.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            found = _names_of(inner)
            sets |= found.sets
            fills |= found.fills
            writes |= found.writes
    return Names(frozenset(sets), frozenset(fills), frozenset(writes | fills))
