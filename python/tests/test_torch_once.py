"""state.once(f): made once by all ranks, kept, and given to a successor; and state.step()."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_job import needs_torch
from torch_small import small, survives
from torch_warm import REFUSED, say

pytestmark = needs_torch

BEGIN = f"""{REFUSED}
import torch, holdfast.torch as hf
from holdfast.torch import _engine
hf.init()
net = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5), torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
state = hf.State(net, optimizer)
run = state.vars(best=0.0)
calls = []  # Not kept.
x = torch.ones(4, 2)
"""


def test_torch_once_puts_back_what_an_evaluation_leaves(tmp_path: Path) -> None:
    say(
        f"""{BEGIN}
def evaluate(scale, *, more):
    calls.append(scale)
    _engine.engine.marked = len(calls) == 1  # As if another process was lost: void.
    loss = net(x * scale).sum().item() + more  # In training mode: it counts in the statistics.
    net.eval()
    return loss, torch.rand(2)
def now():
    return [t.tolist() for t in net.state_dict().values()]
was = now()
loss, drawn = state.once(evaluate, 2.0, more=1.0)
assert calls == [2.0, 2.0] and net.training and now() == was, (calls, now(), was)
assert isinstance(loss, float) and drawn.shape == (2,)
again, other = state.once(evaluate, 2.0, more=1.0)  # Another place: it is made for itself.
assert len(calls) == 3 and other.tolist() != drawn.tolist()
for y in state.steps([x]):
    assert state.once(len, [1, 2]) == 2  # Within a step it is a plain call.
    net(y).sum().backward()
    optimizer.step()
assert now() != was
""",
        tmp_path / "log",
    )


def test_torch_once_is_an_error_where_it_would_change_or_lose_something(tmp_path: Path) -> None:
    say(
        f"""{BEGIN}
def train():
    net(x).sum().backward()
    optimizer.step()
refused("changed `model1.", lambda: state.once(train))
def rate():
    optimizer.param_groups[0]["lr"] = 0.5
refused("which a replacement would not have", lambda: state.once(rate))
def better():
    run.best = 1.0
refused("changed `best`", lambda: state.once(better))
refused("that can not be pickled", lambda: state.once(lambda: (lambda: 1)))
refused("1,048,576 can be kept in an epoch", lambda: state.once(lambda: bytes(2_000_000)))
def fails():
    net.eval()
    raise KeyError("file")
try:
    state.once(fails)
except KeyError:
    pass
else:
    raise AssertionError
assert net.training and not _engine.engine.in_step
assert state.once(lambda: 5) == 5
""",
        tmp_path / "log",
    )


# once() before the loop, between epochs, after the loop. Kills in it, before it, after it.
ONCE = """
state = hf.State(model, optimizer)
run = state.vars(found=[])
def evaluate(where):
    at("in", where)
    total = torch.tensor([float(len(run.found) + rank)])
    dist.all_reduce(total)
    with open(f"{folder}/made-{rank}", "a") as file:
        file.write(f"{where}\\n")
    return total.item(), random.random()
first = state.once(evaluate, "first")
at("began")
second = state.once(evaluate, "second")
for epoch in state.epochs(2):
    for x in state.steps(data):
        at("step", state.n)
        train(x)
    between = state.once(evaluate, f"epoch {epoch}")
    at("after", epoch)
    run.found.append(between)
at("ended")
last = state.once(evaluate, "last")
at("done")
leave(first, second, run.found, last, state.once(evaluate, "last"))
"""


@pytest.mark.kill
@pytest.mark.parametrize(
    "kills",
    [
        [[0, "in", "first"], [1, "began"], [0, "in", "second"], [0, "step", 0], [1, "step", 4]],
        [[1, "in", "epoch 0"], [0, "after", 0], [1, "after", 1], [0, "in", "last"], [1, "done"]],
    ],
    ids=["before the loop", "after an epoch and at the end"],
)
def test_torch_a_result_is_told_to_whoever_comes_later(tmp_path: Path, kills: Any) -> None:
    results, _ = survives(tmp_path, ONCE, kills)
    assert results[0][0][0] == results[1][0][0] == 1.0
    assert results[0][3] != results[0][4]


# nanoGPT's loop: a step draws the next batch at its end, and may have an evaluation in it.
OWN = """
class Batch:  # A thing of the program's own, given by its name.
    at = 0
    def state_dict(self): return {"at": self.at}
    def load_state_dict(self, state): self.at = state["at"]
here = Batch()
state = hf.State(model, optimizer, here=here)
run = state.vars(best=math.inf, x=torch.zeros(3, 4), bad=0)
def draw():
    here.at += 1
    run.x.copy_(torch.randn(3, 4) + here.at)
def evaluate():
    model.eval()
    with torch.no_grad():
        loss = model(data[0]).sum()
    dist.all_reduce(loss)
    model.train()
    at("evaluated", state.n)
    return loss.item()
def save():
    at("saves", state.n)
    return state.n
while state.n < 8 and not state.stopped:
    if state.n == 4:  # At the top, where a replacement begins: made or told.
        saved = state.once(save)
        at("saved", saved)
    with state.step():
        if state.n == 0:
            draw()
        at("begin", state.n)
        if state.n % 3 == 0:
            run.best = min(run.best, evaluate())
        train(run.x)
        draw()
        run.bad += 1
        if config["stops"] and state.n == 5 and rank == 1:
            state.stop()
        at("end", state.n)
last = state.once(save)
leave(state.n, here.at, run.best, run.x.tolist(), run.bad, last)
"""


@pytest.mark.kill
@pytest.mark.parametrize(
    ("stops", "kills"),
    [
        (False, [[0, "begin", 0], [1, "evaluated", 3], [0, "end", 5], [1, "end", 7]]),
        (True, [[1, "end", 5], [0, "saves", 6]]),
        (False, [[0, "saves", 4], [1, "saved", 4], [0, "begin", 4]]),
    ],
    ids=["in its steps", "with a stop", "in what it saves"],
)
def test_torch_a_loop_of_ones_own_goes_on_where_it_was(
    tmp_path: Path, stops: bool, kills: Any
) -> None:
    results, _ = survives(tmp_path, OWN, kills, stops=stops)
    n = 6 if stops else 8
    assert results[0][:2] == [n, n + 1] and results[0][4:6] == [n, n]


@pytest.mark.kill
@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("run.late += 1", "late"),
        ("optimizer.param_groups[0]['lr'] *= 0.5", "sgd1"),
        ("scheduler.step()", "scheduler"),
        ("net[1].bias.detach().add_(1)", "model1.module.1.bias"),
    ],
)
def test_torch_a_loop_of_ones_own_changes_nothing_between_its_steps(
    tmp_path: Path, change: str, name: str
) -> None:
    text = f"""
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 9)
state = hf.State(model, optimizer, scheduler=scheduler)
run = state.vars(late=0)
{change if "run" in change else ""}  # Before the first step it is the program's beginning.
while state.n < 3:
    with state.step():
        train(data[state.n])
    if state.n == 2:
        {change}
leave()
"""
    results, said = small(tmp_path / "job", text)
    assert results is None
    assert "was changed between two steps of a loop of your own" in said and f"`{name}" in said


@pytest.mark.kill
def test_torch_a_result_that_a_replacement_would_not_ask_for_is_told_in_a_sentence(
    tmp_path: Path,
) -> None:
    text = """
state = hf.State(model, optimizer)
def save():
    at("saves")
    dist.barrier()
while state.n < 4:
    with state.step():
        train(data[0])
    if state.n == 2:  # Behind the step: who begins here makes step 3.
        state.once(save)
leave()
"""
    results, said = small(tmp_path / "job", text, [[0, "saves"]])
    assert results is None
    assert "begins something else: a process that replaces another comes to other calls" in said


# Calls that not every epoch makes, and one by another name: each has its own place.
SOMETIMES = """
state = hf.State(model, optimizer)
def base(): return "base", state.n
def evaluate(): return "evaluation", state.n
seen = []
for epoch in state.epochs(3):
    if state.n == 0:
        first = state.once(base)
    for x in state.steps(data):
        train(x)
        at("end", state.n)
    found = state.once(evaluate)
    assert found == ("evaluation", 3 * epoch + 3), found
    at("after", epoch)
leave(state.n)
"""


@pytest.mark.kill
def test_torch_a_result_is_that_of_its_own_place(tmp_path: Path) -> None:
    survives(tmp_path, SOMETIMES, [[0, "end", 1], [1, "after", 0], [0, "after", 1]])


# Like a metric of torchmetrics, as far as State uses it: its counts are plain attributes.
METRIC = """
import types
class Metric(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self._defaults = {"total": torch.tensor(0.0), "all": []}
        self._update_count, self._computed = 0, None
        self.total, self.all = torch.tensor(0.0), []
    def update(self, x):
        self._update_count += 1
        self.total = self.total + x
        self.all.append(torch.tensor(x))
sys.modules["torchmetrics.metric"] = types.SimpleNamespace(Metric=Metric)
mine = Metric()
model.inner = Metric()
state = hf.State(model, optimizer, mine=mine)
for x in state.steps(data, epochs=2):
    loss = train(x)
    for metric in (mine, model.inner):
        metric.update(loss)
    at("end", state.n)
counts = [(m._update_count, m.total.item(), len(m.all)) for m in (mine, model.inner)]
leave(*counts)
"""


@pytest.mark.kill
def test_torch_a_metric_counts_each_step_once(tmp_path: Path) -> None:
    results, _ = survives(tmp_path, METRIC, [[0, "end", 1], [1, "end", 4]])
    assert results[0][0][0] == results[0][1][0] == 6


# A step that an exception leaves after unscale_() is made anew.
SCALER = """
scaler = torch.amp.GradScaler("cpu")
state = hf.State(model, optimizer, scaler=scaler)
failed = False
while state.n < 3:
    try:
        with state.step():
            optimizer.zero_grad()
            scaler.scale((model(data[0]) ** 2).mean()).backward()
            scaler.unscale_(optimizer)
            if state.n == 1 and not failed:
                failed = True
                raise KeyError
            scaler.step(optimizer)
            scaler.update()
    except KeyError:
        pass
leave(state.n)
"""


def test_torch_a_step_that_is_left_after_unscale_is_undone(tmp_path: Path) -> None:
    results, said = small(tmp_path / "job", SCALER)
    assert results is not None and results[0][0] == 3, said
