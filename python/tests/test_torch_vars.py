"""state.vars(...): plain values that are kept with every step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_job import needs_torch
from torch_small import survives
from torch_warm import REFUSED, say

from holdfast._vars import Values

pytestmark = needs_torch


def tensor_of(number: float) -> Any:
    import torch

    return torch.tensor([number])


def numpy_of(number: float) -> Any:
    import numpy

    return numpy.array([number])


def plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


BEGIN = f"""{REFUSED}
import collections, datetime, math, numpy, random, torch, holdfast.torch as hf
from holdfast.torch import _engine
def void():
    _engine.engine.marked = not state.replaying
hf.init()
model = torch.nn.Linear(2, 2)
state = hf.State(model)
"""


def test_torch_vars_are_after_a_void_step_as_before_it(tmp_path: Path) -> None:
    say(
        f"""{BEGIN}
run = state.vars(
    best=math.inf, bad=0, losses=[], table=numpy.zeros((2, 2)), seen=collections.Counter(),
    sums=collections.defaultdict(float), recent=collections.deque(maxlen=2), mean=torch.zeros(2),
    when=datetime.date(2020, 1, 1), nested={{"a": [1, {{"b": (2, 3)}}]}}, chosen=frozenset(),
    word=None)
losses, table, mean, inner = run.losses, run.table, run.mean, run.nested["a"]
made = []  # Not kept: a void step counts twice.
for x in state.steps([1.0, 2.0, 3.0]):
    made.append(x)
    void()
    run.best, run.bad = min(run.best, x), run.bad + 1
    losses.append(x)
    table[int(x) % 2, 0] += x
    run.seen[x] += 1
    run.sums[str(x)] += x
    run.recent.append(x)
    mean += x
    run.when += datetime.timedelta(days=1)
    inner[1]["b"] += (x,)
    inner.append({{x}})
    run.chosen |= {{x}}
    run.word = str(x)
assert made == [1.0, 1.0, 2.0, 2.0, 3.0, 3.0], made
assert (run.best, run.bad, run.losses) == (1.0, 3, [1.0, 2.0, 3.0]), run
assert run.table.tolist() == [[2.0, 0.0], [4.0, 0.0]] and run.mean.tolist() == [6.0, 6.0], run
assert run.seen == {{1.0: 1, 2.0: 1, 3.0: 1}} and run.sums["new"] == 0.0, run
assert list(run.recent) == [2.0, 3.0] and run.recent.maxlen == 2, run
assert run.when == datetime.date(2020, 1, 4) and run.word == "3.0", run
assert run.nested == {{"a": [1, {{"b": (2, 3, 1.0, 2.0, 3.0)}}, {{1.0}}, {{2.0}}, {{3.0}}]}}, run
assert run.chosen == {{1.0, 2.0, 3.0}}, run
# Lists, arrays and tensors are the same objects: who holds one sees what it has become.
assert losses is run.losses and table is run.table and mean is run.mean
assert "bad=3" in repr(run)
""",
        tmp_path / "log",
    )


def test_torch_what_vars_can_not_keep_is_an_error_at_its_line(tmp_path: Path) -> None:
    say(
        f"""{BEGIN}
def line():
    import sys, traceback
    return traceback.extract_tb(sys.exc_info()[2])[0].lineno
run = state.vars(best=1.0, held=None)
try:
    run.held = random.Random(1)
except UserError as error:
    assert "`held` can not be kept by state.vars(...): it is, or holds, a random.R" in str(error)
    assert "State(..., held=...)" in str(error) and "run.held = random.Random(1)" not in str(error)
else:
    raise AssertionError
refused("holds, a __main__", lambda: state.vars(meter=[type("Meter", (), {{}})()]))
refused("a builtins.function", lambda: state.vars(f=print and (lambda: 1)))
refused("with a graph behind it: detach()", lambda: setattr(run, "held", model(torch.ones(2))))
refused("it is a tensor on meta", lambda: setattr(run, "held", torch.ones(2, device="meta")))
refused("shares its memory with `weight`", lambda: setattr(run, "held", model.state_dict()))
refused("shares its memory with `weight`", lambda: state.vars(more=[model.weight.detach()]))
run.held = [value.clone() for value in model.state_dict().values()]
run.held = None
refused("an array of objects", lambda: setattr(run, "held", numpy.array([object()])))
refused("a defaultdict of something", lambda: setattr(
    run, "held", collections.defaultdict(lambda: 1)))
loop = []
loop.append(loop)
refused("nested too deep, or holds itself", lambda: setattr(run, "held", loop))
assert run.held is None and run.best == 1.0  # As before.
refused("`best` before; name each once", lambda: state.vars(best=2.0))
refused("given no `bets`; name it there", lambda: setattr(run, "bets", 2.0))
try:
    run.bets
except AttributeError as error:
    assert "state.vars(...) was given no `bets`" in str(error)
else:
    raise AssertionError
refused("holds 5,000,", lambda: setattr(run, "held", bytes(5_000_000)))
more = state.vars(text="x" * 3_000_000)  # Another Vars of the same State; each has its own names.
assert not hasattr(more, "best") and len(more.text) == 3_000_000
""",
        tmp_path / "log",
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("run.losses.append(object())", "`losses` can not be kept by state.vars(...)"),
        ("run.losses.append('x' * 5_000_000)", "`losses` is the largest"),
        ("run.losses = 'x' * 2_200_000; more.other = 'x' * 2_200_000", "can be kept, and `"),
    ],
)
def test_torch_what_comes_into_vars_by_their_own_methods_is_seen_at_the_steps_end(
    tmp_path: Path, change: str, text: str
) -> None:
    said = say(
        f"""{BEGIN}
run, more = state.vars(losses=[]), state.vars(other="")
def steps():
    for x in state.steps([1.0, 2.0]):
        assert x == 1.0
        {change}
refused("{text}", steps)
print("refused")
""",
        tmp_path / "log",
    )
    assert "refused" in said


KEEPS = """
state = hf.State(model, optimizer)
run = state.vars(best=math.inf, losses=[], counts=[0] * 1000, table=torch.zeros(100, 100))
meters = state.vars(meters={i: [0.0, 0] for i in range(200)})
hidden = [0]  # What is not in State does not outlive the process.
for epoch in state.epochs(3):
    for x in state.steps(data):
        at("begin", state.n)
        loss = train(x)
        hidden[0] += 1
        run.best = min(run.best, loss)
        run.losses.append(loss)
        run.counts[state.n] += 1
        run.table[state.batch] += loss
        meters.meters[state.batch][1] += 1
        at("end", state.n)
    run.best += 1.0
    at("after", epoch)
lost = hidden[0]
leave(state.n, run.best, run.losses, run.counts, run.table.sum().item(), meters.meters)
"""


@pytest.mark.kill
def test_torch_vars_outlive_whoever_is_killed(tmp_path: Path) -> None:
    kills = [[0, "begin", 1], [1, "end", 4], [0, "after", 1], [1, "begin", 8]]
    results, _ = survives(tmp_path, KEEPS, kills)
    n, _, losses, counts, *_ = results[0]
    assert n == len(losses) == 9 and counts[:10] == [1] * 9 + [0], results


@pytest.mark.kill
def test_torch_vars_are_each_ranks_own(tmp_path: Path) -> None:
    text = """
state = hf.State(model, optimizer)
mine = state.vars(rank=rank, **{f"only{rank}": 0})
for x in state.steps(data, epochs=2):
    train(x)
    at("end", state.n)
    setattr(mine, f"only{rank}", getattr(mine, f"only{rank}") + 1)
leave(mine.rank, getattr(mine, f"only{rank}"))
"""
    results, _ = survives(tmp_path, text, [[1, "end", 2]])
    assert [r[:2] for r in results] == [[0, 6], [1, 6]]


def brought_back(before: dict[str, Any], change: Callable[[Any], None]) -> Any:
    """Return Vars after a step that changed them was void."""
    values = Values()
    run = values.name(before)
    packed = values.packed()
    change(run)
    values.put_back(packed)
    return run


@pytest.mark.parametrize("make", [lambda n: [n], lambda n: {"n": n}, numpy_of, tensor_of])
def test_torch_two_values_that_were_one_object_meanwhile_are_two_again(
    make: Callable[[float], Any],
) -> None:
    first, last = make(1.0), make(2.0)

    def change(run: Any) -> None:
        run.best = run.last

    run = brought_back({"best": first, "last": last}, change)
    assert plain(run.best) == plain(make(1.0)) and plain(run.last) == plain(make(2.0))
    assert run.last is last or run.best is last, "who holds it sees what it has become"


@pytest.mark.parametrize("make", [numpy_of, tensor_of])
def test_torch_a_value_that_was_a_view_of_another_meanwhile_is_its_own_again(
    make: Callable[[float], Any],
) -> None:
    def change(run: Any) -> None:
        run.table = make(7.0)
        run.row = run.table[:]
        run.kept["deep"] = [run.table[:]]

    run = brought_back(
        {"table": make(1.0), "row": make(2.0), "kept": {"deep": [make(3.0)]}}, change
    )
    assert plain(run.table) == [1.0]
    assert plain(run.row) == [2.0]
    assert plain(run.kept["deep"][0]) == [3.0]


def test_torch_one_object_under_two_names_stays_one_and_counters_count_alike() -> None:
    shared = [1.0]
    counts = Counter(a=2)

    def change(run: Any) -> None:
        run.one.append(2.0)
        run.counts = [Counter(b=1)]

    run = brought_back({"one": shared, "two": [shared], "counts": counts}, change)
    assert run.one is shared and run.two[0] is run.one and shared == [1.0]
    assert run.counts == Counter(a=2)
