"""Look at the code of a program: what the body of a loop, or of a `with`, does to variables."""

from __future__ import annotations

import dis
import re
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any, Final, NamedTuple

_LAST: Final = ("RETURN_", "RAISE_", "RERAISE")
FILLS: Final = {"append", "extend", "add", "update"}


class Body(NamedTuple):
    """Names in the body of a loop, or of a `with state.step()`."""

    sets: frozenset[str]
    carried: frozenset[str]  # Those that it may read, or leave, as the step before has left them.
    needed: frozenset[str]  # Those of them that it may read before it sets them.
    reads: frozenset[str]  # What it may change in place.
    fills: frozenset[str]  # By methods that lists, sets and dicts have for it.
    of_module: frozenset[str]  # A function's that are not its own.
    elsewhere: frozenset[str]  # What the loop around a `with` sets outside of it.
    in_loop: bool  # It is a loop's, or there is one around it.
    is_with: bool


@lru_cache(maxsize=64)
def body_of(code: CodeType, at: int) -> Body:
    """Look at the body of the `for` or the `with` that a function is at."""
    sets, carried, reads, fills, of_module = set(), set(), set(), set(), set()
    beyond = -1  # Where what was seen by now may have jumped to.
    inside = _inside(list(dis.get_instructions(code)), code, at)
    for i, following in pairwise([*inside, *inside[-1:]]):
        for what, name in _names(i):
            if what == "LOAD" and name not in sets:
                reads.add(name)
            if what == "LOAD" and following.argval in FILLS:
                fills.add(name)
            if what == "STORE" and name not in sets and (name in reads or i.offset < beyond):
                carried.add(name)
            if what == "STORE":
                sets.add(name)
            if i.opname.endswith("_GLOBAL"):
                of_module.add(name)
        if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs:
            is_forward = i.argval > i.offset
            beyond = max(beyond, i.argval if is_forward else inside[-1].offset + 1)
    needed = _read_first(inside) & sets
    rest = _around(code, inside) - {i.offset for i in inside} if inside else set()
    elsewhere = {
        name
        for i in dis.get_instructions(code)
        if i.offset in rest
        for what, name in _names(i)
        if what == "STORE"
    }
    is_with = not any(i.offset == at and i.opname == "FOR_ITER" for i in dis.get_instructions(code))
    return Body(
        frozenset(sets),
        frozenset(carried | needed),
        frozenset(needed),
        frozenset(reads),
        frozenset(fills),
        frozenset(of_module),
        frozenset(elsewhere),
        is_in_loop(code, at),
        is_with,
    )


@lru_cache(maxsize=256)
def is_in_loop(code: CodeType, at: int) -> bool:
    """Whether there is a loop in a function around that place."""
    return any(begin <= at < end for begin, end in _loops(code))


def is_in_for(code: CodeType, at: int) -> bool | None:
    """Whether the innermost loop around a place is a `for`. None: there is no loop."""
    around = [loop for loop in _loops(code) if loop[0] <= at < loop[1]]
    if not around:
        return None
    begin = min(around, key=lambda loop: loop[1] - loop[0])[0]
    return any(i.offset == begin and i.opname == "FOR_ITER" for i in dis.get_instructions(code))


def _loops(code: CodeType) -> list[tuple[int, int]]:
    """Return where the loops of a function begin and end."""
    return [
        (i.argval, i.offset)
        for i in dis.get_instructions(code)
        if (i.opcode in dis.hasjrel or i.opcode in dis.hasjabs) and i.argval < i.offset
    ]


def _around(code: CodeType, inside: list[dis.Instruction]) -> set[int]:
    """Return the innermost loop around some instructions, by offsets."""
    begin, end = inside[0].offset, inside[-1].offset
    loops = [loop for loop in _loops(code) if loop[0] <= begin and end <= loop[1]]
    if not loops:
        return set()
    first, last = min(loops, key=lambda loop: loop[1] - loop[0])
    return {i.offset for i in dis.get_instructions(code) if first <= i.offset <= last}


def _read_first(inside: list[dis.Instruction]) -> set[str]:
    """Return which names may be read before they are set, on any way through some instructions.

    A `for` among them is taken to go round once at least; exceptions are not looked at.
    """
    at = {i.offset: n for n, i in enumerate(inside)}
    after: list[list[int]] = []  # By instruction: which may come next.
    for n, i in enumerate(inside):
        ends = i.opname.startswith(("JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", *_LAST))
        following = [] if ends else [n + 1]
        is_jump = i.opcode in dis.hasjrel or i.opcode in dis.hasjabs
        if is_jump and i.argval in at and not i.opname.startswith(("FOR_ITER", "SETUP")):
            target = at[i.argval]
            following.append(target)
            if inside[target].opname == "FOR_ITER" and inside[target].argval in at:
                following.append(at[inside[target].argval])
        after.append([m for m in following if m < len(inside)])
    first: list[set[str]] = [set() for _ in inside]
    is_new = True
    while is_new:
        is_new = False
        for n in reversed(range(len(inside))):
            found = {name for m in after[n] for name in first[m]}
            for what, name in reversed(_names(inside[n])):
                (found.add if what == "LOAD" else found.discard)(name)
            is_new = is_new or found != first[n]
            first[n] = found
    return first[0] if first else set()


def _names(i: dis.Instruction) -> list[tuple[str, str]]:
    """Return which variables an instruction loads and stores; since Python 3.13 it may be two."""
    if not re.fullmatch("((LOAD|STORE)_(FAST|NAME|GLOBAL|DEREF)(_CHECK|_BORROW)?_?)+", i.opname):
        return []
    names = i.argval if isinstance(i.argval, tuple) else (i.argval,)
    return list(zip(re.findall("LOAD|STORE", i.opname), names))


def _inside(code: list[dis.Instruction], of: CodeType, at: int) -> list[dis.Instruction]:
    where = next((n for n, i in enumerate(code) if i.offset == at), None)
    if where is None:
        return []
    here, before = code[where], code[max(0, where - 1)]
    if here.opname in ("FOR_ITER", "SETUP_WITH"):  # The latter up to Python 3.10.
        return [i for i in code if at < i.offset < here.argval]
    if here.opname == "BEFORE_WITH" or before.opname == "LOAD_SPECIAL":  # Since 3.14.
        entries = [e for e in dis.Bytecode(of).exception_entries if e.start > at]  # type: ignore
        return [i for i in code if i.offset > at and _is_within(entries, i.offset)]
    return []


def _is_within(handlers: list[Any], offset: int) -> bool:
    """Whether an exception raised at `offset` comes to the first of the `handlers`, of a `with`.

    It may come to others first, within the `with`.
    """
    end = min(handlers, key=lambda e: e.start).target
    for _ in handlers:
        offset = next((e.target for e in handlers if e.start <= offset < e.end), -1)
        if offset in (end, -1):
            break
    return bool(offset == end)
