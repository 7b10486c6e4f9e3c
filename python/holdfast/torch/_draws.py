"""Find the generators of random numbers that a program reaches from its data."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial
from itertools import islice
from types import BuiltinMethodType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import torch

from holdfast._errors import UserError
from holdfast._vars import dumps
from holdfast._whose import is_programs_code
from holdfast.torch._others import contents_of, is_common, is_generator, put_back

_MOST: Final = 300_000  # So many objects are looked at, at most.
_LEAVES: Final = (type, ModuleType, torch.Tensor, bool, int, float, complex, str, bytes, range)
_PLAIN: Final = frozenset((*_LEAVES, type(None)))
_BEGIN: Final = ("__init__", "__new__", "__post_init__")  # A successor makes their draws as well.


def see_that_none_goes_on(
    what: str, holder: Any, but: Collection[Any], cure: str, ask: Callable[[], Any]
) -> None:
    """Raise UserError if `holder` reaches a generator that `ask` does not set.

    Before each of two calls of ask(), each generator is moved on. One that has the same state after
    both was set by ask(). All others are refused, also those that ask() does not use at all. What
    only objects in `but` reach is left out.
    """
    name = getattr(holder, "__qualname__", type(holder).__name__)
    find = partial(generators_in, holder, name, but)
    if not (found := find()):
        return
    kept = [(g, contents_of(g)) for g in found.values()]
    after: list[dict[str, bytes]] = []
    try:
        for _ in range(2):
            for generator in find().values():
                _move(generator)
            ask()
            after.append({where: dumps(contents_of(g)) for where, g in find().items()})
    except Exception:
        after = [{}, dict.fromkeys(found, b"")]  # `ask` fails here: refuse all generators.
    finally:
        for generator, place in kept:
            put_back(generator, place)
    for where, place in after[1].items():
        if after[0].get(where) != place:
            raise UserError(
                f"{what} holds a generator of its own, {where}, which goes on from draw to draw, "
                f"so a fault would change the data: {cure}"
            )


def generators_in(holder: Any, name: str, but: Collection[Any] = ()) -> dict[str, Any]:
    """Return the generators that an object reaches, by where they are.

    Left out: what only objects in `but` reach, and the common ones of torch, random and NumPy.
    """
    found = {}
    known = {id(thing): thing for thing in but}  # Held, so that no id is used again.
    todo = deque([(name, holder)])
    while todo and len(known) < _MOST:
        where, thing = todo.popleft()
        if id(thing) in known:
            continue
        known[id(thing)] = thing
        if not is_generator(thing):
            todo.extend(islice(_parts(where, thing), _MOST))
        elif not is_common(thing):
            found[where if where.startswith("`") else f"`{where}`"] = thing
    return found


def _parts(where: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object holds that may lead to a generator, and where that is."""
    numpy = sys.modules.get("numpy")
    if isinstance(thing, _LEAVES) or (numpy is not None and isinstance(thing, numpy.ndarray)):
        return
    if isinstance(thing, (list, tuple, deque)):
        yield from ((f"{where}[{i}]", p) for i, p in enumerate(thing) if type(p) not in _PLAIN)
    elif isinstance(thing, (set, frozenset)):
        yield from ((f"{where}{{}}", p) for p in thing if type(p) not in _PLAIN)
    elif isinstance(thing, dict):
        parts = list(dict.items(thing))
        yield from ((f"{where}[{key!r}]", p) for key, p in parts if type(p) not in _PLAIN)
    elif isinstance(thing, (MethodType, BuiltinMethodType)):
        yield where, thing.__self__
        yield where, getattr(thing, "__func__", None)
    elif isinstance(thing, partial):
        yield f"{where}.func", thing.func
        yield f"{where}.args", thing.args
        yield f"{where}.keywords", thing.keywords
    elif isinstance(thing, FunctionType):
        yield from _of_a_function(where, thing)
    else:
        yield from _of_a_class(type(thing))  # type: ignore[arg-type]
    yield from ((f"{where}.{key}", p) for key, p in _attributes(thing) if type(p) not in _PLAIN)


def _attributes(thing: Any) -> Iterator[tuple[str, Any]]:
    try:
        own = dict(object.__getattribute__(thing, "__dict__"))
    except AttributeError:
        own = {}
    if isinstance(thing, torch.nn.Module):
        own |= own.pop("_modules", {})
    yield from own.items()
    for kind in type(thing).__mro__:
        names = vars(kind).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            try:
                yield name, object.__getattribute__(thing, name)
            except AttributeError:
                continue  # Not set, or private: then its real name is another one.


def _of_a_function(where: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield a function's closure and defaults, and what its code names: generators, functions."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield f"{where}.{name}", cell.cell_contents
        except ValueError:
            continue  # The variable is not set yet.
    yield where, function.__defaults__
    yield where, function.__kwdefaults__
    if not is_programs_code(function.__code__.co_filename):
        return
    for name in sorted(_names_of(function.__code__)):
        value = function.__globals__.get(name)
        if is_generator(value) or isinstance(value, (FunctionType, BuiltinMethodType)):
            named = f"`{name}`, which `{function.__qualname__}` names"
            yield named if is_generator(value) else name, value


@functools.lru_cache(1000)
def _of_a_class(kind: type) -> tuple[tuple[str, Any], ...]:
    """Return the methods of a class that are the program's, and generators in class attributes.

    What only a constructor calls is left out: a successor makes the same draws in it.
    """
    found: list[tuple[str, Any]] = []
    methods: dict[FunctionType, str] = {}
    for cls in kind.__mro__:
        for name, member in vars(cls).items():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(function, FunctionType):
                if is_programs_code(function.__code__.co_filename):
                    methods[function] = name
            elif is_generator(member):
                found.append((f"{cls.__qualname__}.{name}", member))
    called = {n for f, name in methods.items() if name in _BEGIN for n in _names_of(f.__code__)}
    used = [f for f, name in methods.items() if name not in called and name not in _BEGIN]
    for function in used:  # The list grows meanwhile.
        names = called & _names_of(function.__code__)
        used += [f for f, name in methods.items() if name in names and f not in used]
    return (*found, *((function.__qualname__, function) for function in used))


def _names_of(code: CodeType) -> set[str]:
    inner = (_names_of(part) for part in code.co_consts if isinstance(part, CodeType))
    return set(code.co_names).union(*inner)


def _move(generator: Any) -> None:
    if isinstance(generator, torch.Generator):
        torch.rand(1, generator=generator, device=generator.device)
    else:
        generator.random()
