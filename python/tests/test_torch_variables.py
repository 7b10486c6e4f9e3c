"""What a loop's body leaves in the program's variables, and how the loop was left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from holdfast.torch._frames import loop_was_left  # noqa: E402
from holdfast.torch._variables import Variables  # noqa: E402

# In a file of its own, as a program is.
PROGRAM = """
def mean(steps):
    losses, names, total, lr = [], set(), 0.0, 1.0
    before = [[str(i) * 40 for i in range(60)] for _ in range(16)]  # More than is kept.
    for x in steps:
        losses.append(x)
        names.add(str(x))
        total += x
        thing.lr = loss = torch.tensor(x)
    return sum(losses) / len(losses), sorted(names), total, lr, float(loss)

def begins_with(steps):
    total = 7.0
    steps.read()
    for x in steps.made:
        total += x
    return total

def breaks(steps):
    for x in steps():
        if x == 2:
            break

def ends_a_zip(steps):
    for _, x in zip(range(2), steps()):
        pass

def raises_beside(steps):
    for x, _ in zip(steps(), fails(1)):
        pass

def raises_within(steps):
    for x in steps():
        for _ in fails(1):
            pass

def raises(steps):
    for x in steps():
        raise ValueError

def drops_an_attribute(steps):
    thing.it = steps()
    next(thing.it)
    thing.it = None

def drops_an_item(steps):
    held = {"it": steps()}
    next(held["it"])
    held["it"] = None

def fails(n):
    yield from range(n)
    raise ValueError
"""


def program(name: str) -> Callable[[Any], Any]:
    found: dict[str, Any] = {"torch": torch, "thing": SimpleNamespace()}
    exec(compile(PROGRAM, "program.py", "exec"), found)
    function: Callable[[Any], Any] = found[name]
    return function


def test_torch_what_a_body_sets_and_fills_is_there_where_it_is_passed_over() -> None:
    first, successor = Variables(), Variables()

    def made() -> Iterator[float]:
        yield from (1.0, 3.0)
        first.note(sys._getframe())

    def passed_over() -> Iterator[float]:
        successor.give_back(sys._getframe())
        yield from ()

    result = program("mean")(made())
    assert result == (2.0, ["1.0", "3.0"], 4.0, 1.0, 3.0)
    successor.restore(first.objects())
    assert program("mean")(passed_over()) == result


def test_torch_what_a_program_has_set_stays_where_it_only_reads_the_epoch() -> None:
    variables = Variables()

    def made() -> Iterator[float]:
        yield 2.0
        variables.note(sys._getframe())

    def read() -> None:
        variables.give_back(sys._getframe(1), passed_over=False)

    for _ in range(2):
        steps = SimpleNamespace(made=made(), read=read)
        assert program("begins_with")(steps) == 9.0


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("breaks", True),
        ("ends_a_zip", True),
        ("drops_an_attribute", True),
        ("drops_an_item", True),
        ("raises_beside", False),
        ("raises_within", False),
        ("raises", False),
    ],
)
def test_torch_a_loop_that_an_exception_leaves_is_told_from_one_that_ends(
    name: str, left: bool
) -> None:
    said: list[bool] = []

    def steps() -> Iterator[int]:
        try:
            yield from (1, 2, 3)
        except GeneratorExit:
            said.append(loop_was_left(sys._getframe()))
            raise

    try:
        program(name)(steps)
    except ValueError:
        assert not left
    assert said == [left]
