"""Looks, after a step, at everything that a program remembers: names, and what they hold.

It sees variables of the loop and of its callers, globals of the program's modules, attributes of
classes and objects, closure cells, default arguments, and the positions of counters and generators.
This serves only to name what differs between two runs.
"""

from __future__ import annotations

import ast
import collections
import collections.abc
import contextlib
import functools
import itertools
import operator
import os
import sys
import types
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from holdfast._digest import (
    attributes,
    digest,
    generator_state,
    is_scalar,
    short,
    shown,
    tensor_bytes,
    text_of,
)
from holdfast._whose import (
    FRAMEWORKS,
    is_installed,
    is_programs_code,
    is_programs_module,
)
from holdfast.verify._culprit import tree_of

_NODES: Final = 20_000
_DEEP: Final = 7
_EACH: Final = 32  # Of a container with more parts, only a digest is noted.
_ITERATORS: Final = ("builtins", "itertools")
_OF_A_PACKAGE: Final = 60  # Most modules of an installed package that counts as the program's.


class Told(NamedTuple):
    """An object of a class of the program's, and digests of the values in its state_dict()."""

    thing: Any
    values: frozenset[str]
    kinds: tuple[type, ...]  # Of these values. What is of another kind needs no digest.

    def holds(self, value: Any) -> bool:
        """Return whether a value is in the state_dict()."""
        return isinstance(value, self.kinds) and digest(value) in self.values


class Probe:
    """Finds what has changed in the memory of the program."""

    def __init__(self) -> None:
        """Begin without an earlier look."""
        self._known: dict[str, str] = {}  # What the last look found.
        self._set: frozenset[str] | None = None  # Attributes that the program's source sets.

    def look(
        self, frame: types.FrameType | None, kept: Iterable[Any] = ()
    ) -> dict[str, str | None]:
        """Return what has changed since the last look: name → text of its value; None: it is gone.

        `kept`: objects in State, which are left out.
        """
        if self._set is None:
            self._set = frozenset(_attributes_set_in(sources(frame)))
        found = _Look(self._set, kept).all(frame)
        changed: dict[str, str | None] = {
            name: value for name, value in found.items() if self._known.get(name) != value
        }
        changed.update((name, None) for name in self._known if name not in found)
        self._known = found
        return changed


class _Look:
    def __init__(self, attributes_set: frozenset[str], kept: Iterable[Any]) -> None:
        self._set = attributes_set
        self._found: dict[str, str] = {}
        # By id. Held, so that no id is used again.
        self._seen: dict[int, Any] = {}
        self._told: dict[int, Told] = {}
        for thing in kept:
            if isinstance(thing, Told):
                self._told[id(thing.thing)] = thing
            else:
                self._seen[id(thing)] = thing
        self._queue: collections.deque[tuple[str, Any, int]] = collections.deque()

    def all(self, frame: types.FrameType | None) -> dict[str, str]:
        modules = dict(_modules(frame))
        self._frames(frame)
        for name, module in modules.items():
            self._module("" if name == "__main__" else f"{name}.", module)
        nodes = 0
        while self._queue and nodes < _NODES:
            self._visit(*self._queue.popleft())
            nodes += 1
        return self._found

    def _frames(self, frame: types.FrameType | None) -> None:
        """Take the variables of the loop's function and of its callers."""
        main = sys.modules["__main__"].__dict__
        while frame is not None:
            if is_programs_code(frame.f_code.co_filename):
                name = str(frame.f_globals.get("__name__"))
                if frame.f_locals is not frame.f_globals:
                    inner = set(frame.f_code.co_freevars)
                    for variable, value in dict(frame.f_locals).items():
                        note = "closure" if variable in inner else "local"
                        owner = frame.f_code.co_name
                        prefix = "" if frame.f_globals is main else f"{name}."
                        self._put(f"{variable} ({note} of {prefix}{owner})", value, 0)
            frame = frame.f_back

    def _module(self, prefix: str, module: Any) -> None:
        for name, value in list(vars(module).items()):
            if not name.startswith("__") and not isinstance(value, types.ModuleType):
                self._put(prefix + name, value, 0)

    def _put(self, name: str, value: Any, depth: int) -> None:
        if depth <= _DEEP:
            self._queue.append((name, value, depth))

    def _visit(self, name: str, thing: Any, depth: int) -> None:
        if is_scalar(thing):
            self._note(name, shown(thing))
            return
        if id(thing) in self._seen:
            return
        self._seen[id(thing)] = thing
        if tensor_bytes(thing) is not None:
            self._note(name, shown(thing))
        elif (state := generator_state(thing)) is not None:
            self._note(name, f"{type(thing).__name__} #{digest(state)}")
        elif isinstance(thing, (types.FunctionType, types.MethodType)):
            self._function(name, thing, depth)
        elif isinstance(thing, type):
            if is_programs_module(thing.__module__):
                self._class(name, thing, depth)
        elif isinstance(thing, types.GeneratorType):
            if thing.gi_frame is not None and is_programs_code(thing.gi_code.co_filename):
                for variable, value in dict(thing.gi_frame.f_locals).items():
                    self._put(_dotted(name, variable), value, depth + 1)
        elif isinstance(thing, (enumerate, itertools.count)):
            self._note(name, _place(thing))
        elif isinstance(thing, collections.abc.Iterator) and type(thing).__module__ in _ITERATORS:
            self._iterator(name, thing, depth)
        else:
            self._object(name, thing, depth)

    def _iterator(self, name: str, thing: Any, depth: int) -> None:
        """Note how much is left in one of Python's own iterators, or look into it."""
        left = operator.length_hint(thing, -1)
        if left >= 0:
            self._note(name, f"{type(thing).__name__} with {left} to come")
            return
        with contextlib.suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number, part in enumerate(thing.__reduce__()[1]):
                self._put(_dotted(name, f"[{number}]"), part, depth + 1)

    def _note(self, name: str, text: str) -> None:
        self._found.setdefault(name, text)

    def _object(self, name: str, thing: Any, depth: int) -> None:
        kind = type(thing)
        if isinstance(thing, (list, tuple, dict, set, frozenset, collections.deque)):
            self._container(name, thing, depth)
        elif kind.__module__.partition(".")[0] in FRAMEWORKS:
            self._framework(name, thing, depth)
        elif is_programs_module(kind.__module__) or kind is types.SimpleNamespace:
            told = self._told.get(id(thing))
            extends = any(base.__module__.partition(".")[0] in FRAMEWORKS for base in kind.__mro__)
            for attribute, value in _without_modules(thing):
                is_set = not attribute.startswith("_") or attribute in self._set
                if extends and is_scalar(value) and not is_set:
                    continue  # The framework's own.
                if told is None or not told.holds(value):
                    self._put(_dotted(name, attribute), value, depth + 1)
            self._put(_class_name(kind), kind, depth + 1)
        elif isinstance(thing, (functools.partial, functools.partialmethod)):
            self._put(name, thing.func, depth + 1)
            self._put(_dotted(name, "args"), list(thing.args), depth + 1)
            self._put(_dotted(name, "keywords"), dict(thing.keywords), depth + 1)

    def _container(self, name: str, thing: Any, depth: int) -> None:
        if isinstance(thing, (set, frozenset)) or len(thing) > _EACH:
            self._note(name, f"{type(thing).__name__} of {len(thing)} #{digest(thing)}")
            return
        if (text := short(thing)) is not None:
            self._note(name, text)
            return
        parts = thing.items() if isinstance(thing, dict) else enumerate(thing)
        for key, value in parts:
            part = f"[{text_of(key)}]"[:60] if is_scalar(key) else f"[a {type(key).__name__}]"
            self._put(_dotted(name, part), value, depth + 1)

    def _framework(self, name: str, thing: Any, depth: int) -> None:
        """Look at what the program put into a framework's object, and at a module's tensors.

        A number counts as put there by the program if the program's source sets its name.
        """
        for attribute, value in _without_modules(thing):
            inner = attribute in ("_modules", "_parameters", "_buffers")
            if inner and isinstance(value, dict):
                for key, part in value.items():
                    self._put(_dotted(name, str(key)), part, depth)
            elif _is_programs(value) or (attribute in self._set and is_scalar(value)):
                self._put(_dotted(name, attribute), value, depth + 1)
            elif isinstance(value, (list, tuple)) and len(value) <= _EACH:
                for number, part in enumerate(value):
                    if _is_programs(part):
                        self._put(_dotted(name, f"{attribute}[{number}]"), part, depth + 1)
            elif attribute in ("dataset", "sampler", "module", "batch_sampler", "generator"):
                self._put(_dotted(name, attribute), value, depth + 1)

    def _function(self, name: str, thing: Any, depth: int) -> None:
        if isinstance(thing, types.MethodType):
            self._put(name.rpartition(".")[0] or name, thing.__self__, depth + 1)
            thing = thing.__func__
            if not isinstance(thing, types.FunctionType):
                return
        if not is_programs_code(thing.__code__.co_filename):
            return
        for cell_name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or ()):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            self._put(f"{cell_name} (closure of {thing.__qualname__})", value, depth + 1)
        for number, value in enumerate(thing.__defaults__ or ()):
            count = thing.__code__.co_argcount - len(thing.__defaults__)
            variable = thing.__code__.co_varnames[count + number]
            self._put(f"{variable} (default of {thing.__qualname__})", value, depth + 1)
        for attribute, value in vars(thing).items():
            self._put(f"{thing.__qualname__}.{attribute}", value, depth + 1)

    def _class(self, name: str, thing: type, depth: int) -> None:
        for attribute, value in list(vars(thing).items()):
            if attribute.startswith("__") or isinstance(value, types.MemberDescriptorType):
                continue
            value = getattr(value, "__func__", value)
            self._put(f"{_class_name(thing)}.{attribute}", value, depth + 1)


def _class_name(kind: type) -> str:
    prefix = "" if kind.__module__ == "__main__" else f"{kind.__module__}."
    return prefix + kind.__qualname__


def _dotted(name: str, part: str) -> str:
    """Return `a.b (local of f)` for `a (local of f)`."""
    head, space, tail = name.partition(" (")
    return f"{head}{part if part.startswith('[') else '.' + part}{space}{tail}"


def _without_modules(thing: Any) -> list[tuple[str, Any]]:
    return [
        (name, value)
        for name, value in attributes(thing).items()
        if not isinstance(value, types.ModuleType)
    ]


def _is_programs(thing: Any) -> bool:
    if isinstance(thing, types.FunctionType):
        return is_programs_code(thing.__code__.co_filename)
    if isinstance(thing, type):
        return False
    return is_programs_module(type(thing).__module__)


def _place(thing: Any) -> str:
    """Return the position of a counter."""
    if isinstance(thing, enumerate):
        return f"enumerate at {thing.__reduce__()[1][1]}"
    return repr(thing)


def _modules(frame: types.FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield the program's modules, and modules of installed packages that call the loop."""
    calling = set()
    while frame is not None:
        calling.add(str(frame.f_globals.get("__name__")).partition(".")[0])
        frame = frame.f_back
    sizes = collections.Counter(name.partition(".")[0] for name in list(sys.modules))
    for name, module in sorted(sys.modules.items()):
        path, top = getattr(module, "__file__", None), name.partition(".")[0]
        if not isinstance(module, types.ModuleType) or not path or name == "__mp_main__":
            continue
        if not is_programs_module(name) or not is_programs_code(os.path.abspath(path)):
            continue
        if is_installed(path) and (top not in calling or sizes[top] > _OF_A_PACKAGE):
            continue
        yield name, module


def sources(frame: types.FrameType | None) -> list[str]:
    """Return the program's source files."""
    return sorted({str(module.__file__) for _, module in _modules(frame)})


def _attributes_set_in(paths: Iterable[str]) -> set[str]:
    """Return `b` of each `a.b = ...` and `a.b += ...`."""
    found: set[str] = set()
    for path in paths:
        tree = tree_of(path)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                found.add(node.attr)
    return found
