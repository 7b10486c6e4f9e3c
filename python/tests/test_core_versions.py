"""What both faces do alike: versions, their heads, and the values of state.vars(...)."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import UserError, _head
from holdfast._head import Head
from holdfast._makers import change_of, makers
from holdfast._vars import Values
from holdfast._versions import Versions


class Session:
    """A fake session. `begun`: for each begin_step(), its result and the generation after it."""

    rehearses = False

    def __init__(self, *begun: tuple[bool, int]) -> None:
        self.version, self.generation, self._begun = 5, 0, list(begun)
        self.meets = [True, False]
        self.memory = {0: memoryview(bytearray(8)), 5: memoryview(b"at five.")}

    def meet(self) -> bool:
        return self.meets.pop(0)

    def private(self, version: int) -> memoryview:
        return self.memory[version]

    def begin_step(self) -> bool:
        reformed, self.generation = self._begun.pop(0)
        return reformed


class Kept(Versions):
    def __init__(self, *greets: bool) -> None:
        self.done: list[str] = []
        self.greets = list(greets)

    def fill(self, view: memoryview) -> None:
        view[:] = b"at zero."
        self.done.append("filled")

    def restore(self) -> None:
        self.done.append("restored " + bytes(self.last).decode())

    def repair(self, which: list[int]) -> None:
        self.done.append(f"repaired {which}")

    def flip(self, which: int, byte: int, bit: int) -> None:
        raise NotImplementedError  # No drill comes here.

    def greet(self) -> bool:
        self.done.append("greeted")
        return self.greets.pop(0)


class Replicas:
    """Fake ones, of which some have changed."""

    def __init__(self, *repaired: list[int]) -> None:
        self._repaired = list(repaired)

    def compare(self, at_end: bool) -> list[int]:
        return self._repaired.pop(0) if self._repaired else []


def opened(session: Any, *greets: bool) -> Kept:
    kept = Kept(*greets)
    kept.open(session)
    kept.replicas = Replicas()  # type: ignore[assignment]
    assert kept.done == ["filled", "restored at five."]
    assert bytes(session.memory[0]) == b"at zero."
    kept.done.clear()
    return kept


def test_core_ranks_greet_once_in_a_generation() -> None:
    kept = opened(Session((False, 1), (False, 1), (True, 2)), True, True)
    kept.begin_version()
    kept.begin_version()
    assert kept.done == ["greeted"]
    kept.begin_version()
    assert kept.done == ["greeted", "restored at five.", "greeted"]


def test_core_a_fault_in_a_greeting_begins_the_version_again() -> None:
    kept = opened(Session((False, 1), (True, 2), (False, 2)), False, True)
    kept.begin_version()
    assert kept.done == ["greeted", "restored at five.", "greeted"]
    kept.begin_version()
    assert kept.done == ["greeted", "restored at five.", "greeted"]


def test_core_replicas_are_compared_before_ranks_greet() -> None:
    kept = opened(Session((True, 1), (False, 1)), True)
    kept.replicas = Replicas([2, 0])  # type: ignore[assignment]
    kept.begin_version()
    assert kept.done == ["restored at five.", "repaired [2, 0]", "greeted"]
    assert kept.repairs == 1
    kept.begin_version()
    assert kept.repairs == 1


def test_core_a_repair_counts_if_the_greeting_after_it_fails() -> None:
    kept = opened(Session((False, 1), (True, 2), (False, 2)), False, True)
    kept.replicas = Replicas([2], [])  # type: ignore[assignment]
    kept.begin_version()
    assert kept.repairs == 1


def test_core_an_image_of_another_kind_is_refused() -> None:
    view = memoryview(bytearray(64))
    Head(b"what lies where", b"the rest", 48).write(view, b"HFTORCH1")
    found = _head.read(view, b"HFTORCH1")
    assert (bytes(found.table), bytes(found.objects), found.start) == (
        b"what lies where",
        b"the rest",
        48,
    )
    with pytest.raises(UserError, match="was written by another kind of program"):
        _head.read(view, b"hfmsimg1")
    with pytest.raises(UserError, match=r"format b'1', which another release .* whose .* is b'2'"):
        _head.read(view, b"HFTORCH2")


def test_core_versions_of_packages_are_compared() -> None:
    now = makers()
    assert now["Python"].startswith("3.") and change_of(now) == ""
    assert change_of({"Python": "3.1", "elsewhere": "1"}) == f"Python 3.1 (this is {now['Python']})"


def test_core_a_table_that_lies_there_already_is_not_written_again() -> None:
    view = memoryview(bytearray(64))
    Head(b"table", b"one", 0).write(view, b"HFTORCH1")
    Head(b"xxxxx", b"other", 0).write(view, b"HFTORCH1", has_table=True)
    found = _head.read(view, b"HFTORCH1")
    assert bytes(found.table) == b"table" and bytes(found.objects) == b"other"


def test_core_a_predecessor_s_values_stay_until_they_are_named() -> None:
    first = Values()
    run = first.name({"losses": [1.0], "best": 2})
    run.losses.append(3.0)
    successor = Values()
    successor.put_back(first.packed())
    assert successor.packed() == first.packed()  # The successor may be lost before it names them.
    assert successor.name({"best": 9}).best == 2
    named = successor.name({"losses": []})
    held = named.losses
    assert held == [1.0, 3.0]
    successor.put_back(first.packed())
    assert named.losses is held  # Restored in place: the program may hold the list.
    with pytest.raises(UserError, match="was given `best` before; name each once"):
        successor.name({"best": 1})
    assert Values().packed() == b""
