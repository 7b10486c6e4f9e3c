"""Names the variables that a program remembers and that State does not hold.

It looks at the variables that differ, and at the program's source: which names the source changes,
and which names are read by a line that printed something else.
"""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast._advice import Order
from holdfast.verify._records import Record

# Methods that change their own object.
_CHANGES: Final = frozenset(
    (
        *("append", "add", "update", "extend", "insert", "pop", "popleft", "popitem"),
        *("appendleft", "setdefault", "remove", "discard", "clear", "fill", "put"),
        *("increment", "accumulate", "observe", "step"),
    )
)
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_GENERATOR: Final = re.compile(r"^(Generator|Random|RandomState) #")
_DIGEST: Final = re.compile(r"#([0-9a-f]{16})$")


@dataclass(frozen=True)
class Remembered:
    """Something that the program remembers and that differs between two runs."""

    name: str
    rank: int
    step: int  # The first step after which it differs.
    was: str
    now: str
    lasts: bool = True  # It differs at a step's end, not only when a step begins.

    @property
    def words(self) -> set[str]:
        """Return the words of the variable's name."""
        return set(_WORD.findall(self.name.replace("(closure of", "").replace("(local of", "")))

    @property
    def leaf(self) -> str:
        """Return the last part of the variable's name: `n` of `a.n (local of f)`."""
        head = re.sub(r"\[[^]]*\]", "", self.name.partition(" (")[0])
        return head.rpartition(".")[2]

    @property
    def root(self) -> str:
        """Return the first part of the variable's name: `a` of `a.n (local of f)`."""
        return re.split(r"[.\[ ]", self.name)[0]


def compare(clean: Record, other: Record) -> list[Remembered]:
    """Return the variables that differ, in the order of their first difference."""
    found: dict[tuple[int, str], Remembered] = {}
    lasting: set[tuple[int, str]] = set()
    for number, rank in other.ranks.items():
        if number not in clean.ranks:
            continue
        was = dict(clean.ranks[number].memory)
        state = dict(clean.ranks[number].states)
        for moment, memory in rank.memory:
            before, n = was.get(moment), moment[0]
            if before is None:
                continue
            kept = set(state.get(n - (moment[1] == "begins"), {}).values())
            for name in before.keys() | memory.keys():
                a, b = before.get(name, "nothing"), memory.get(name, "nothing")
                owned = (match := _DIGEST.search(a)) is not None and match.group(1) in kept
                if a == b or owned:
                    continue
                found.setdefault((number, name), Remembered(name, number, n, a, b))
                if moment[1] == "done":
                    lasting.add((number, name))
    things = [dataclasses.replace(r, lasts=key in lasting) for key, r in found.items()]
    return sorted(things, key=lambda r: (r.step, r.rank, r.name))


class Source:
    """The names that a program changes, known from its source."""

    def __init__(self, paths: Sequence[str]) -> None:
        """Read the program's files."""
        self._changed: set[str] = set()
        self._fresh: set[str] = set()
        for path in paths:
            tree = tree_of(path)
            if tree is not None:
                self._changed |= _changed_names(tree)
                self._fresh |= _fresh_names(tree)

    def sets_first(self, thing: Remembered) -> bool:
        """Return whether each loop sets the variable before reading it, so that no value stays."""
        return thing.root in self._fresh and "closure" not in thing.name

    def changes(self, thing: Remembered) -> bool:
        """Return whether the program's source changes a variable from step to step."""
        if _GENERATOR.match(thing.was):
            return True
        return thing.leaf in self._changed or thing.root in self._changed

    def carried(self, things: Sequence[Remembered], ignore: Sequence[str]) -> list[Remembered]:
        """Return the things that the program changes, each once, the earliest first."""
        found: dict[str, Remembered] = {}
        for thing in things:
            name = thing.name
            plain = name.partition(" (")[0]
            if any(fnmatch.fnmatch(name, i) or fnmatch.fnmatch(plain, i) for i in ignore):
                continue
            if thing.lasts and self.changes(thing) and "nothing" not in (thing.was, thing.now):
                found.setdefault(name, thing)
        return list(found.values())


def culprits(
    things: Sequence[Remembered], source: Source, n: int, lines: Sequence[tuple[str, int]] = ()
) -> list[Remembered]:
    """Return the likeliest causes of a difference after step n, the likeliest first."""
    read = {name for line in lines for name in names_at(*line)}
    things = [thing for thing in things if not source.sets_first(thing)]
    before = [thing for thing in things if thing.step <= max(n, 1) + 1] or things
    if not before:
        return []

    def rank(thing: Remembered) -> tuple[bool, bool, bool, int, int]:
        return (
            not (thing.words & read),
            not source.changes(thing),
            "nothing" in (thing.was, thing.now),  # A step sets most of these before it reads them.
            thing.step,
            len(thing.name),
        )

    ordered = sorted(before, key=rank)
    best = rank(ordered[0])[:4]
    names: dict[str, Remembered] = {}
    for thing in ordered:
        if rank(thing)[:4] == best:
            names.setdefault(thing.name, thing)
    return list(names.values())[:6]


@functools.cache
def tree_of(path: str) -> ast.Module | None:
    """Return the syntax tree of a source file; None if it can not be read."""
    try:
        return ast.parse(Path(path).read_text())
    except (OSError, SyntaxError, ValueError):
        return None


def names_at(path: str, line: int) -> set[str]:
    """Return the names that are read by the smallest statement at `line` of `path`."""
    tree = tree_of(path)
    best: ast.stmt | None = None
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
            span = (node.end_lineno or 0) - node.lineno
            if best is None or span <= (best.end_lineno or 0) - best.lineno:
                best = node
    if best is None:
        return set()
    return {n.id for n in ast.walk(best) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(best) if isinstance(n, ast.Attribute)
    }


def _base_names(node: ast.expr) -> set[str]:
    """Return the names that a change affects: `a` and `b` of `a.b[c] += 1`."""
    found: set[str] = set()
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    if isinstance(node, ast.Name):
        found.add(node.id)
    return found - {"self", "cls"}


def _changed_names(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            found |= _base_names(node.target)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            found |= set(node.names)
        elif isinstance(node, ast.Assign):
            read = {n.attr for n in ast.walk(node.value) if isinstance(n, ast.Attribute)}
            for target in node.targets:
                if isinstance(target, ast.Subscript):
                    found |= _base_names(target)
                elif isinstance(target, ast.Attribute) and target.attr in read:
                    found.add(target.attr)
        elif isinstance(node, ast.Call):
            found |= _changed_by_call(node)
        if isinstance(node, (ast.For, ast.While)):
            found |= Order(node).carried
        found |= _counted_by(node)
    return found


def _counted_by(node: ast.AST) -> set[str]:
    """Return `i` of `for i, x in enumerate(...)`, which counts from one iteration to the next."""
    if not isinstance(node, ast.For) or not isinstance(node.iter, ast.Call):
        return set()
    function, target = node.iter.func, node.target
    if not isinstance(function, ast.Name) or function.id != "enumerate":
        return set()
    return _base_names(target.elts[0] if isinstance(target, ast.Tuple) else target)


def _fresh_names(tree: ast.Module) -> set[str]:
    """Return variables that loops set, and that no loop reads before it has set them."""
    found: set[str] = set()
    gone_on: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)):
            order = Order(node)
            found |= order.set - order.read_first
            gone_on |= order.carried | _counted_by(node)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            gone_on |= set(node.names)
    return found - gone_on


def _changed_by_call(node: ast.Call) -> set[str]:
    function = node.func
    if not isinstance(function, ast.Attribute):
        return set()
    if function.attr == "at" and node.args:  # numpy.add.at(matrix, ...)
        return _base_names(node.args[0])
    if function.attr in _CHANGES or (
        function.attr.endswith("_") and not function.attr.startswith("_")
    ):
        return _base_names(function.value)
    return set()
