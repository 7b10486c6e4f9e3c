"""What a loop's body leaves in the program's variables, and how the loop was left."""

from __future__ import annotations

import enum
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
best, count, history, per_class = 9.0, 0, [], {}
counter = Counter()

def batch_end(x, callbacks=()):
    global best, count
    count += 1
    per_class[x] = per_class.get(x, 0) + 1
    counter[x] += 1
    if count % 2 == 0:
        history.append((count, x))
    if x < best:
        best = x

class Runs:
    def __init__(self):
        self.callbacks = [batch_end]

    def run(self, steps, best=5):  # Another `best`.
        for x in steps:
            for callback in self.callbacks:
                callback(x)
        return best, globals()["best"], count, history, sorted(per_class.items()), counter

def calls_back(steps):
    return Runs().run(steps)

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

class Loader:
    def __init__(self):
        self.tokens, self.batch = torch.zeros(9000), None

    def next_batch(self, x):
        if x == 3:
            self.tokens = torch.ones(9000)  # Of another file.
        self.batch = self.tokens + x

def shards(steps):
    loader = Loader()
    for x in steps:
        loader.next_batch(x)

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

def warms_up(steps):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 0.001, total_iters=3)
    for x in steps:
        optimizer.step()
        scheduler.step()
    return scheduler.last_epoch

def log(steps):
    logger = Logger()
    for x in steps:
        logger.update(x)
    return {name: logger.describe(name) for name in logger.meters}

def aliases(steps):
    h = c = torch.zeros(2)  # One object, until the body makes two of it.
    data = torch.arange(6.0)
    x, base = data[0:2], torch.zeros(1)
    order = OrderedDict(a=1, b=2)
    config = locals()
    class Own(list):
        pass
    own, lists = Own(), []
    same = lists
    for s in steps:
        h, c = h + s, c + 10 * s
        x = x * 0 + s
        order.move_to_end("a")
        order[s] = s
        own.append(s)
        lists.append(s)
    return h, c, data, x, list(order.items()), same, sorted(config)[:3]

def odd(steps):
    turn, stages, queue = Turn.D, [Meter(), Meter()], [Meter(), Meter(), Meter()]
    stage, seen, wide, lazy = stages[0], set(), torch.zeros(1).expand(4), Meter()
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with torch.inference_mode():
        mean = torch.zeros(2)
    scale = torch.ones(1, requires_grad=True)
    total, grads = 0.0, []
    for x in steps:
        turn = Turn.G if turn is Turn.D else Turn.D
        stage = stages[1] if x == 3.0 else stage
        stage.update(x)
        queue.append(queue.pop(0))
        queue[0].update(x)
        seen.add((x, "seen"))
        wide = wide + x
        mean = mean + x
        lazy.size = getattr(lazy, "size", 0) + nested.numel()
        total = total + scale * x
    total.backward()
    sums = [vars(meter)["sum"] for meter in (*stages, *queue)]
    return Turn.D.name, turn, stages.index(stage), sums, seen, wide, mean, lazy.size, scale.grad

class Log(list):
    def __init__(self, values=()):
        super().__init__(values)
        self.count = 0

    def put(self, x):
        self.append(x)
        self.count += 1

def shapes(steps):
    table, stats, both = numpy.zeros(4).reshape(2, 2), numpy.zeros((2, 2)), torch.zeros(2, 2)
    row, line, turned = stats[0], both[0], torch.tensor([1 + 2j]).conj()
    h, c, mean, first = torch.zeros(32768), torch.zeros(32768), numpy.float64(0), [Meter()]
    own, new = Log(), Log()
    for x in steps:
        table += x
        row += x
        line += x
        turned = (turned * x).conj()
        h = h * 0.5 + x
        c = c + h
        mean = mean + torch.tensor(x)
        first[0] = Smoothed()
        first[0].update(x)
        own.put(x)
        new = Log([*new, x])
    sums = float(h.sum()), float(c.sum()), mean.item()
    return table, stats, both, turned.resolve_conj(), sums, vars(first[0]), own, own.count, new

def draws(steps):
    state, lazy, drawn = numpy.random.RandomState(3), None, []
    for x in steps:
        if lazy is None:
            lazy = random.Random(1), numpy.random.RandomState(4)
            numbers, generator = numpy.random.default_rng(3), torch.Generator().manual_seed(2)
        drawn += [state.randn(), lazy[0].random(), lazy[1].randn(), numbers.random()]
        drawn.append(torch.rand((), generator=generator).item() + x)
    return drawn

def one_before(steps):
    weight, seen = torch.ones(1, requires_grad=True), []
    for x in steps:
        if seen:
            seen.append(loss.item() + other.item())
        if x == 2.0 or not seen:
            other = (weight * x).sum()
            other.backward()
        loss = (weight * x).sum() + other.item()
        loss.backward()
        seen = seen or [x]
    return seen

def many(steps):
    meters, held = {i: Meter() for i in range(100)}, SimpleNamespace(log=SimpleNamespace())
    held.log.meters, held.long = {"loss": Smoothed(9)}, [0.0] * 9000
    for x in steps:
        meters[int(x)].update(x)
        held.log.meters["loss"].update(x)
        held.long.append(x)
    return [m.sum for m in meters.values()][:6], held.log.meters["loss"].values, len(held.long)

def large(steps):
    table, mean = SimpleNamespace(sums=torch.zeros(40, 40), n=0), torch.nn.Linear(3, 3)
    array, means = numpy.zeros((40, 40)), {"weight": torch.zeros(5000)}
    lines, best, scratch = [], Meter(), torch.zeros(5000)
    for x in steps:
        table.n += 1
        table.sums[int(x)] += x
        mean.weight.data, means["weight"][0] = mean.weight.data, x
        with torch.no_grad():
            mean.weight.mul_(0.5)
        numpy.add.at(array, (int(x), 1), x)
        lines.append(str(x) * 80000)
        if x == 3.0: best = Meter()
        best.update(x)
        scratch = torch.ones(5000) * x
        for _ in range(2): other = Meter()
        other.update(x)
    return table.n

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

def carries(state, end):
    total = 0.0
    while state.n < end:
        x = float(state.n)
        with state.step():
            total += x
            x = x / 2
    return total, x

def takes_turns(state, end):
    first = second = 0.0
    while state.n < end:
        x = float(state.n)
        if x % 2:
            with state.step(): first += x
        else:
            with state.step(): second += x
    return first, second

def highest(passes):
    top = 0.0
    for steps in passes:
        for x in steps:
            if x > top: top = x
    return top

def calls(state, end):
    meter, seen = Smoothed(9), []
    while state.n < end:
        make(state, float(state.n), meter, seen)
    return list(meter.values), seen

def make(state, x, meter, seen):
    with state.step():
        seen.append(meter.update(x) or x)

def is_given(state, end):
    made = []
    while state.n < end:
        made.append(train(state, torch.full((2,), float(state.n)), 1.0))
    return made

def train(state, x, lr):
    total = 5.0
    with state.step():
        x = x / 2
        lr = lr * 0.5
        total += 1
    return x.tolist(), lr, total

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


class Turn(enum.Enum):
    """Whose it is."""

    D, G = 1, 2


class Smoothed:
    """A meter as torchvision's examples have it."""

    def __init__(self, window: int = 2) -> None:
        self.values: deque[float] = deque(maxlen=window)
        self.total, self.n = 0.0, 0

    def update(self, x: float) -> None:
        self.values.append(x)
        self.total, self.n = self.total + x, self.n + 1


class Logger:
    """Makes its meters when they are first asked for."""

    def __init__(self) -> None:
        self.meters: defaultdict[str, Smoothed] = defaultdict(Smoothed)
        self.meters["lr"] = Smoothed(1)

    def update(self, x: float) -> None:
        self.meters["lr"].update(0.1)
        self.meters["loss"].update(x)

    def describe(self, name: str) -> tuple[list[float], int | None, float]:
        meter = self.meters[name]
        return list(meter.values), meter.values.maxlen, meter.total / meter.n


def program(name: str) -> Callable[[Any], Any]:
    found: dict[str, Any] = {"torch": torch, "numpy": numpy, "random": random}
    found.update(thing=SimpleNamespace(), Logger=Logger, __name__="__main__")
    found.update(defaultdict=defaultdict, deque=deque, Counter=Counter, Turn=Turn)
    found.update(OrderedDict=OrderedDict, Smoothed=Smoothed, SimpleNamespace=SimpleNamespace)
    exec(compile(PROGRAM, "program.py", "exec"), found)
    sys.modules["__main__"].Log = found["Log"]  # type: ignore[attr-defined]
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


@pytest.mark.parametrize(
    "name",
    [
        *("mean", "counts", "of_module", "log", "warms_up", "aliases", "Trainer"),
        *("shapes", "draws", "one_before", "calls_back"),
    ],
)
def test_torch_steps_find_what_the_steps_before_them_have_left(name: str, tmp_path: Path) -> None:
    data = (1.0, 3.0, 2.0, 5.0)
    usual = str(program(name)(Steps(Variables(print)).of(data)))

    first = Variables(print)
    first.open(tmp_path / "variables", 0)
    assert str(program(name)(Steps(first, void=data).of(data))) == usual  # Each is made twice.
    first.end_pass(4, 7)

    for image, number in ((first.objects(), None), (Variables(print).objects(), 4)):
        successor = Variables(print)
        successor.open(tmp_path / "variables", 7)
        successor.restore(image)
        assert str(program(name)(Steps(successor).passed_over(number))) == usual

    for n in (1, 2, 3):
        lost, successor = Variables(print), Variables(print)
        rest = Steps(successor).of(data[n:], begins=False)
        with pytest.raises(ZeroDivisionError):
            program(name)(cut_short(Steps(lost).of(data), n))
        successor.restore(lost.objects())
        assert str(program(name)(rest)) == usual


def test_torch_a_void_step_leaves_all_objects_where_they_were() -> None:
    said: list[str] = []
    usual = program("odd")(Steps(Variables(print)).of((1.0, 3.0, 2.0)))
    found = program("odd")(Steps(Variables(said.append), void=(1.0, 3.0, 2.0)).of((1.0, 3.0, 2.0)))
    assert str(found) == str(usual)
    named = sorted(line.split("`")[1] for line in said)
    assert named == ["queue", "stage", "total"]  # What a replacement could not be given.


def test_torch_a_large_tensor_that_steps_read_until_one_has_another_is_said() -> None:
    said: list[str] = []
    program("shards")(Steps(Variables(said.append)).of((1.0, 2.0, 3.0, 4.0)))
    assert [line.split("`")[1] for line in said] == ["loader.tokens"]


def test_torch_a_void_step_leaves_many_objects_and_deep_ones_where_they_were() -> None:
    usual = program("many")(Steps(Variables(print)).of((1.0, 3.0, 2.0)))
    void = Steps(Variables(print), void=(1.0, 3.0, 2.0))
    assert str(program("many")(void.of((1.0, 3.0, 2.0)))) == str(usual)


def test_torch_what_no_replacement_can_be_given_is_named_and_costs_nothing_else() -> None:
    said: list[str] = []
    lost, successor = Variables(said.append), Variables(print)
    with pytest.raises(ZeroDivisionError):
        program("large")(cut_short(Steps(lost).of((1.0, 3.0, 2.0, 5.0)), 3))
    named = sorted(line.split("`")[1] for line in said)
    assert named == ["array", "best", "lines", "mean", "means", "table.sums"]
    successor.restore(lost.objects())
    assert program("large")(Steps(successor).of((5.0,), begins=False)) == 4


def test_torch_what_an_earlier_pass_has_left_is_there_in_the_midst_of_a_later_one() -> None:
    lost, successor = Variables(print), Variables(print)
    with pytest.raises(ZeroDivisionError):
        later = cut_short(Steps(lost).of((2.0, 3.0, 4.0)), 1)
        program("highest")([Steps(lost).of((1.0, 5.0)), later])
    successor.restore(lost.objects())
    assert program("highest")([Steps(successor).of((3.0, 4.0), begins=False)]) == 5.0


def test_torch_a_variable_that_changes_while_it_is_looked_at_is_no_error() -> None:
    class Odd(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("dictionary changed size during iteration")

        values = __iter__ = keys = items

    Odd.__module__ = "__main__"
    variables, odd = Variables(print), Odd(a=1)
    for x in Steps(variables, void=[2.0]).of((1.0, 2.0)):
        odd["b"] = x
    assert len(odd) == 2


class Own:
    """Makes steps as `with state.step()` does; step `n` of `data` is the next."""

    def __init__(self, variables: Variables, n: int = 0) -> None:
        self.variables, self._n, self.starts = variables, n, n > 0

    @property
    def n(self) -> int:
        if self.starts:
            self.variables.resume_ahead(sys._getframe(1))
        return self._n

    @contextmanager
    def step(self) -> Iterator[None]:
        if self.starts:
            self.variables.resume(sys._getframe())
            self.starts = False
        self.variables.hold(sys._getframe(), begins=False)
        yield
        self.variables.see(sys._getframe())
        self.variables.note(sys._getframe(), ends=False)
        self._n += 1


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", ["carries", "takes_turns", "calls", "is_given"])
def test_torch_a_step_of_a_programs_own_loop_begins_with_what_it_is_given(
    name: str, n: int
) -> None:
    usual = program(name)(Own(Variables(print)), 4)
    lost, successor = Variables(print), Variables(print)
    program(name)(Own(lost), n)
    successor.restore(lost.objects())
    found = program(name)(Own(successor, n), 4)
    assert found == usual[-len(found) :]


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
