"""What a loop's body leaves in the program's variables, and how the loop was left."""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

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

class Meter:
    def __init__(self):
        self.sum, self.values, self.rng = 0.0, [], random.Random(7)

    def update(self, x):
        self.sum += x
        self.last = x
        self.values.append(x + self.rng.random())

def counts(steps):
    meter, seen, per_class, hidden = Meter(), {}, torch.zeros(9), torch.ones(20000)
    generator, numbers = torch.Generator().manual_seed(3), numpy.random.default_rng(5)
    drawn, n, noted = numpy.zeros(2), 0, None
    sums, recent, often = defaultdict(float), deque(maxlen=2), Counter()
    for x in steps:
        meter.update(x)
        seen[x] = seen.get(x, 0) + 1
        per_class[int(x)] += torch.rand((), generator=generator)
        drawn += numbers.random(2)
        n += 1
        sums["x"] += x
        recent.append(x)
        often[int(x) % 2] += 1
        if n % 2:
            noted = n
        hidden = hidden * 2
    return (
        vars(meter)["sum"], meter.last, meter.values, seen, per_class.tolist(), drawn.tolist(), n,
        noted, float(hidden.sum()), sums["x"], sums["y"], recent, often,
    )

total = 0

def of_module(steps):
    global total
    for x in steps:
        total += x
    return total

class Trainer:
    def __new__(cls, steps):
        self = super().__new__(cls)
        self.meters, self.lines = {"loss": Meter()}, 0
        return self.run(steps)

    def run(self, steps):
        for x in steps:
            self.lines += 1
            self.meters["loss"].update(x)
        return self.lines, self.meters["loss"].values

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
    found: dict[str, Any] = {"torch": torch, "numpy": numpy, "random": random}
    found.update(thing=SimpleNamespace(), __name__="__main__")
    found.update(defaultdict=defaultdict, deque=deque, Counter=Counter)
    exec(compile(PROGRAM, "program.py", "exec"), found)
    function: Callable[[Any], Any] = found[name]
    return function


class Steps:
    """Goes through the steps of a program's loop as State does."""

    def __init__(self, variables: Variables, void: Sequence[float] = ()) -> None:
        self.variables = variables
        self.void = list(void)  # Steps that are made twice.

    def of(self, data: Sequence[float], begins: bool = True) -> Iterator[float]:
        """Make them all; `begins`: with them begins their pass."""
        if not begins:
            self.variables.resume(sys._getframe())
        for i, x in enumerate(data):
            while True:
                self.variables.hold(sys._getframe(), begins=begins and i == 0)
                yield x
                self.variables.see(sys._getframe())
                if x not in self.void:
                    break
                self.void.remove(x)
                self.variables.put_back(sys._getframe())
            self.variables.note(sys._getframe(), ends=i == len(data) - 1)

    def passed_over(self, number: int | None = None) -> Iterator[float]:
        """Make none."""
        self.variables.give_back(sys._getframe(), number)
        yield from ()


@pytest.mark.parametrize("name", ["mean", "counts", "of_module", "Trainer"])
def test_torch_steps_find_what_the_steps_before_them_have_left(name: str, tmp_path: Path) -> None:
    data = (1.0, 3.0, 2.0, 5.0)
    usual = program(name)(Steps(Variables(print)).of(data))

    first = Variables(print)
    first.open(tmp_path / "variables", 0)
    assert program(name)(Steps(first, void=data).of(data)) == usual  # Each is made twice.
    first.end_pass(4, 7)

    for image, number in ((first.objects(), None), (Variables(print).objects(), 4)):
        successor = Variables(print)
        successor.open(tmp_path / "variables", 7)
        successor.restore((first.objects()[0], *image[1:]))
        assert program(name)(Steps(successor).passed_over(number)) == usual

    for n in (1, 2, 3):
        lost, successor = Variables(print), Variables(print)
        rest = Steps(successor).of(data[n:], begins=False)
        with pytest.raises(ZeroDivisionError):
            program(name)(cut_short(Steps(lost).of(data), n))
        successor.restore(lost.objects())
        assert program(name)(rest) == usual


def cut_short(steps: Iterator[float], n: int) -> Iterator[float]:
    """Fail when `n` steps are done."""
    for _ in range(n):
        yield next(steps)
    next(steps)
    raise ZeroDivisionError


def test_torch_what_a_program_has_set_stays_where_it_only_reads_the_epoch() -> None:
    variables = Variables(print)

    def read() -> None:
        variables.give_back(sys._getframe(1), passed_over=False)

    for _ in range(2):
        steps = SimpleNamespace(made=Steps(variables).of([2.0]), read=read)
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
