"""State and its steps in a single process: what is counted, said and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_job import needs_torch
from torch_warm import REFUSED, say

from holdfast._advice import advise

pytestmark = needs_torch

BEGIN = f"""{REFUSED}
import torch, holdfast.torch as hf
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


Program = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return a function that runs a program and returns its output."""
    return lambda text: say(BEGIN + text, tmp_path / "log")


def test_torch_steps_are_counted_over_epochs(program: Program) -> None:
    program("""
refused("hf.init()", lambda: hf.State(model, optimizer))
hf.init()
import gc
assert gc.get_freeze_count() == 0
state = hf.State(model, optimizer)
refused("already", lambda: hf.State(model))
done, seen = [], []
state.on_commit(done.append)
def body(x):
    optimizer.zero_grad(); model(torch.ones(1, 2) * float(x)).sum().backward(); optimizer.step()
    seen.append((state.n, state.epoch, state.batch, float(torch.rand(1))))
loader = torch.utils.data.DataLoader([1.0, 2.0], batch_size=1)
for epoch in state.epochs(4, start=1):
    steps = state.steps(loader)
    assert (len(steps), steps.batch_size, steps.dataset) == (2, 1, [1.0, 2.0])
    assert not hasattr(steps, "_loader")
    for x in steps: body(x)
    refused("within state.epochs", lambda: state.steps(loader, epochs=2))
assert done == list(range(1, 7)), done
assert [s[:3] for s in seen] == [(n, n // 2 + 1, n % 2) for n in range(6)], seen
assert len({s[3] for s in seen}) == 6
assert state.n == 6 and not state.replaying
refused("was called before", lambda: state.steps([1.0]))
refused("one loop around all", lambda: next(state.epochs(2)))
""")


def test_torch_a_loop_that_is_left_leaves_its_step_undone(program: Program) -> None:
    said = program("""
hf.init()
state = hf.State(model, optimizer)
run = state.vars(seen=[])
def train(how):
    for x in state.steps([1.0, 2.0, 3.0]):
        optimizer.zero_grad(); model(torch.ones(1, 2) * x).sum().backward()
        run.seen.append(x)
        if x == 2.0 and how == "break": break
        if x == 2.0 and how == "return": return
        if x == 2.0 and how == "raise": raise KeyError
        optimizer.step()
weights = []
for epoch, how in zip(state.epochs(3), ("break", "return", "raise")):
    try: train(how)
    except KeyError: pass
    weights.append(model.weight.tolist())
    assert state.n == epoch + 1 and run.seen == [1.0] * (epoch + 1), (state.n, run.seen)
assert weights[0] != weights[1] != weights[2]
""")
    assert said.count("which is not done: what it changed is taken back") == 3, said


def test_torch_a_consumer_that_leaves_a_step_after_its_update_is_refused(program: Program) -> None:
    program("""
import itertools
hf.init()
state = hf.State(model, optimizer)
for x in itertools.islice(state.steps([1.0, 2.0, 3.0]), 2): optimizer.step()
assert state.n == 1
refused("was left within step 2, after an optimizer's step", state.training.begin)
""")


def test_torch_a_bar_may_be_around_the_steps(program: Program) -> None:
    program("""
class tqdm:
    def __init__(self, inner): self.inner, self.total = inner, len(inner)
    def __iter__(self): yield from self.inner
hf.init()
state = hf.State(model, optimizer)
run = state.vars(seen=[])
for epoch in state.epochs(2):
    bar = tqdm(state.steps([1.0, 2.0, 3.0]))
    assert bar.total == 3
    for x in bar: run.seen.append(x); optimizer.step()
assert state.n == 6 and run.seen == [1.0, 2.0, 3.0] * 2
""")


def test_torch_stop_ends_the_loops_after_their_step(program: Program) -> None:
    program("""
hf.init()
from holdfast.torch import _engine
state = hf.State(model, optimizer)
run = state.vars(epochs=[])
for epoch in state.epochs(5):
    for x in state.steps([1.0, 2.0, 3.0]):
        if epoch == 1 and x == 2.0:
            _engine.engine.marked = not state.replaying  # A void step's wish is wished again.
            state.stop()
        optimizer.step()
    run.epochs.append(epoch)
assert state.n == 5 and state.stopped and run.epochs == [0, 1], (state.n, run.epochs)
""")


def test_torch_a_loop_of_ones_own_has_all_in_its_steps(program: Program) -> None:
    program("""
hf.init()
from holdfast.torch import _engine
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
state = hf.State(model, optimizer, scheduler=scheduler)
run = state.vars(x=torch.zeros(2), calls=0)
made = []
while state.n < 3:
    found = state.once(lambda: state.n)
    assert found == state.n
    with state.step():
        made.append((state.n, float(run.x.sum()), float(torch.rand(1))))
        run.x = run.x + 1
        run.calls += 1
        assert state.once(lambda: 7) == 7  # A plain call.
        _engine.engine.marked = state.n == 1 and not state.replaying
        scheduler.step()
assert [m[:2] for m in made] == [(0, 0.0), (1, 2.0), (1, 2.0), (2, 4.0)], made
assert made[1] == made[2] and run.calls == 3 and scheduler.last_epoch == 3
try:
    with state.step():
        scheduler.step()
        raise KeyError
except KeyError: pass
assert scheduler.last_epoch == 3 and state.n == 3
run.calls = 9
def step():
    with state.step(): pass
refused("`calls` was changed between two steps of a loop of your own", step)
""")


def test_torch_once_keeps_what_all_ranks_made_and_changes_nothing(program: Program) -> None:
    program("""
hf.init()
from holdfast.torch import _engine
model.register_buffer("mean", torch.zeros(2))
state = hf.State(model, optimizer)
run = state.vars(best=1)
calls = []
def evaluate(a, b=0):
    calls.append(_engine.engine.in_step)
    model.eval(); model.mean.add_(1)
    _engine.engine.marked = len(calls) == 1  # A fault.
    return {"sum": a + b, "drawn": float(torch.rand(1))}
found = state.once(evaluate, 1, b=2)
assert found["sum"] == 3 and calls == [True, True] and state.n == 0
assert model.training and not model.mean.any() and not _engine.engine.in_step
for epoch in state.epochs(2):
    for x in state.steps([1.0, 2.0]): optimizer.step()
    assert state.once(evaluate, epoch)["sum"] == epoch
    assert len(state.progress.results) <= 4, state.progress.results
def changes(): run.best = 2
refused("changed `best`", lambda: state.once(changes))
run.best = 1
def trains():
    with torch.no_grad(): model.weight.add_(1)
refused("changed `model1.weight`", lambda: state.once(trains))
refused("can not be pickled", lambda: state.once(lambda: lambda: 1))
refused("can be kept in an epoch", lambda: state.once(lambda: "x" * (1 << 21)))
def fails(): raise KeyError
try: state.once(fails)
except KeyError: pass
assert not _engine.engine.in_step and state.once(lambda: 5) == 5
""")


def test_torch_a_scheduler_that_state_was_not_given_is_an_error(program: Program) -> None:
    program("""
hf.init()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
refused("a scheduler changes the learning rates of `sgd1`", lambda: hf.State(model, optimizer))
class Trainer:
    def __init__(self): self.scheduler = scheduler
    def state_dict(self): return self.scheduler.state_dict()
    def load_state_dict(self, state): self.scheduler.load_state_dict(state)
state = hf.State(model, optimizer, trainer=Trainer())
""")
    program("""
hf.init()
state = hf.State(model, optimizer)
torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
refused("a scheduler changes the learning rates of `sgd1`", lambda: list(state.steps([1.0, 2.0])))
""")


ADVICE = """
import torch, holdfast.torch as hf
hf.init()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = hf.State(model, optimizer, strict={strict})
run = state.vars(losses=[])
total, seen, number = 0.0, [], 0
def count():
    global number
    number += 1
for i, x in enumerate(state.steps([1.0, 2.0])):
    total += x
    seen.append(x)
    run.losses.append(x)
    loss = x * 2
    loss = loss + 1
    count()
    open("log", "w")
    torch.save(1, "file")
    if x > 5: break
"""


def test_torch_the_source_of_a_loop_is_read_for_what_would_be_lost(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    found = advise(str(file), 0)
    assert found == []
    file.write_text(ADVICE.format(strict=False))
    found = advise(str(file), 12)
    words = ["`total`", "`seen`", "global number", "state.batch", "'a'", "torch.save", "`break`"]
    for word in words:
        assert sum(word in line for line in found) == 1, (word, found)
    assert len(found) == len(words) and all(line.startswith("train.py:") for line in found), found


def test_torch_strict_makes_advice_an_error(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(ADVICE.format(strict=True))
    done = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, timeout=150, cwd=tmp_path
    )
    said = "UserError: State(strict=True): train.py:"  # The first remark is in the same line.
    assert done.returncode == 1 and said in done.stderr, done.stderr
    run = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2", str(file)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    assert done.returncode == 1 and said in done.stderr, done.stderr


def test_torch_advice_comes_also_where_nothing_was_exchanged_before_state(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    text = """
hf.init()
state, last = hf.State(model, optimizer), 0
for x in state.steps([1.0, 2.0]): print(last); last = x
"""
    file.write_text(BEGIN + text)
    run = [sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2", str(file)]
    done = subprocess.run(run, capture_output=True, text=True, timeout=150, cwd=tmp_path)
    said = done.stdout + done.stderr
    assert done.returncode == 0 and said.count("`last` goes on from step to step") == 1, said


def test_torch_a_rank_stops_before_it_takes_a_void_step_back(program: Program) -> None:
    program("""
from holdfast.torch import _engine
hf.init()
state = hf.State(model, optimizer)
calls = []
def noted(thing, name):
    usual = getattr(thing, name)
    def call(*arguments, to=calls):
        to.append(name)
        return usual(*arguments)
    setattr(thing, name, call)
noted(state.engine.session, "begin_step")  # Where a rank stops, if a fault came.
noted(state.versions._image, "read")
def made(to=calls): to.append("body")
seen = []
def see(*what, to=seen): to.append(what)  # A void step takes back what is filled by name.
for x in state.steps([1.0, 2.0]):
    see(x, state.replaying, model.weight.tolist())
    _engine.engine.marked = x == 2.0 and not state.replaying
    optimizer.zero_grad(); model(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
    made()
assert [s[:2] for s in seen] == [(1.0, False), (2.0, False), (2.0, True)], seen
assert seen[1][2] == seen[2][2] != seen[0][2]
again = ["begin_step", "read", "begin_step", "body"]
assert calls == ["begin_step", "body", "begin_step", "body", *again], calls
""")


def test_torch_a_passs_first_step_draws_the_same_when_it_is_made_again(program: Program) -> None:
    program("""
from holdfast.torch import _engine
hf.init()
g = torch.Generator().manual_seed(3)
loader = torch.utils.data.DataLoader([1.0, 2.0, 3.0, 4.0], 2, shuffle=True, generator=g)
state = hf.State(model, optimizer, g=g)
seen = []
def see(*what, to=seen): to.append(what)
for x in state.steps(loader, epochs=2):
    see(state.replaying, x.tolist(), float(torch.rand(1, generator=g)))
    _engine.engine.marked = state.n == 2 and not state.replaying
    optimizer.step()
assert [s[0] for s in seen] == [False, False, False, True, False], seen
assert seen[2][1:] == seen[3][1:], seen
""")


def test_torch_a_list_that_is_empty_yet_and_a_generators_seed_are_kept(program: Program) -> None:
    program("""
hf.init()
seen = []
from holdfast.torch import _random
generator = torch.Generator().manual_seed(5)
state = hf.State(model, optimizer, seen=seen, generator=generator)
loader = torch.utils.data.DataLoader([1.0, 2.0], shuffle=True, generator=generator)
epochs = state.epochs(2)
next(epochs)
for x in state.steps(loader): pass
state.versions.restore()
assert _random.seed_of(generator) == 5
next(epochs)
for x in state.steps([1.0, 2.0]): seen.append(x)
seen.append("lost")
state.versions.restore()
assert seen == [1.0, 2.0], seen
""")


def test_torch_whatever_can_not_work_is_said_in_one_sentence(program: Program) -> None:
    program("""
optimizer.zero_grad(); model(torch.ones(1, 2)).sum().backward()
hf.init()
refused("make the State before the first step", optimizer.step)
refused("there is a process group already", hf.init)
lbfgs = torch.optim.LBFGS(model.parameters())
refused("LBFGS can not be kept", lambda: hf.State(model, lbfgs))
class Hidden(torch.optim.SGD):
    def step(self, closure=None):
        self.hidden.add_(1)
hidden = Hidden(model.parameters(), lr=0.1); hidden.hidden = torch.zeros(1)
refused("reads what it does not declare", lambda: hf.State(model, hidden))
""")


def test_torch_under_another_launcher_the_right_one_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import holdfast.torch as hf; hf.init()"],
        env=dict(os.environ, WORLD_SIZE="2", RANK="0"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "start the program with `holdfast run --nproc-per-node 2 program.py`" in done.stderr


def test_torch_models_and_optimizers_are_kept_wherever_they_stand(program: Program) -> None:
    program("""
hf.init()
nets, made = {"one": model}, [[optimizer], None]
state = hf.State(made, nets=nets)
for x in state.steps([1.0, 2.0]):
    optimizer.zero_grad(); model(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
was = model.weight.detach().clone()
with torch.no_grad(): model.weight.zero_()
state.versions.restore()
assert nets["one"] is model and torch.equal(model.weight, was), (was, model.weight)
""")


def test_torch_a_model_may_be_given_twice_and_a_dict_may_hold_itself(program: Program) -> None:
    program("""
hf.init()
ddp = torch.nn.parallel.DistributedDataParallel(model)
settings = {"rate": 1.0}
settings["self"] = settings
state = hf.State(ddp, optimizer, nets={"one": ddp}, whole=torch.nn.Sequential(ddp), s=settings)
assert state._ddps == [ddp]
for x in state.steps([1.0, 2.0]):
    optimizer.zero_grad(); ddp(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
was = model.weight.detach().clone()
with torch.no_grad(): model.weight.zero_()
settings["rate"] = 7.0
state.versions.restore()
assert torch.equal(model.weight, was) and settings["rate"] == 1.0
""")


def test_torch_what_a_module_says_of_itself_is_kept(program: Program) -> None:
    program("""
class Counting(torch.nn.Linear):
    calls = 0
    def forward(self, x):
        self.calls += 1
        return super().forward(x)
    def get_extra_state(self): return self.calls
    def set_extra_state(self, calls): self.calls = calls
hf.init()
counting = Counting(2, 2)
state = hf.State(torch.nn.Sequential(counting))
for x in state.steps([1.0, 2.0]): counting(torch.ones(1, 2) * x)
counting.calls = 77
state.versions.restore()
assert counting.calls == 2, counting.calls
""")


def test_torch_what_comes_or_goes_in_a_module_is_told_in_a_sentence(program: Program) -> None:
    program("""
hf.init()
class Telling(torch.nn.Linear):
    pass
telling = Telling(2, 2)
telling.register_buffer("mean", torch.zeros(2))
state = hf.State(torch.nn.Sequential(telling))
with state.step(): pass
Telling.get_extra_state = lambda self: 1
Telling.set_extra_state = lambda self, value: None
state.kept._add_model("again", torch.nn.Sequential(telling))  # As the next life would.
refused("restarts: `get_extra_state() of again.0` is kept, in the state it is missing",
        lambda: state.kept._compare_others({"kinds": {}, "others": {}, "extras": {}}))
state.kept._extras.clear()
refused("restarts: `get_extra_state() of model1.0` is missing, in the state it is kept",
        lambda: state.kept._compare_others(
            {"kinds": {}, "others": {}, "extras": {"get_extra_state() of model1.0": 1}}))
state._digests = None  # More was changed here than a loop of one's own may.
del telling.mean
def step():
    with state.step(): pass
refused("buffer `0.mean` of `model1` was removed after State was made", step)
refused("buffer `0.mean` of `model1` was removed after State was made", state.versions.restore)
""")


def test_torch_when_the_training_has_ended_any_optimizer_may_step(program: Program) -> None:
    program("""
hf.init()
from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks
state = hf.State(model, optimizer)
other = torch.optim.Adam(model.parameters())
model(torch.ones(1, 2)).sum().backward()
refused("Adam updates parameters of a model that State keeps", other.step)
torch.distributed.destroy_process_group()
other.step()
assert not [h for h in hooks.values() if getattr(h, "__self__", None) is state]
""")


def test_torch_what_state_would_lose_is_refused_at_the_first_step(program: Program) -> None:
    program("""
hf.init()
refused("give State the model too", lambda: hf.State(optimizer))
class Late(torch.nn.Linear):
    def forward(self, x):
        self.register_buffer("mask", torch.ones(2), persistent=False)
        if not hasattr(self, "mean"): self.register_buffer("mean", x.mean().detach())
        return super().forward(x) * self.mean
late = Late(2, 2)
state = hf.State(model, optimizer, late)
steps = state.steps([1.0, 2.0])
late(next(steps) * torch.ones(1, 2))
refused("buffer `.mean` of `model2` was made after State", lambda: next(steps))
del late._buffers["mean"], late._buffers["mask"]
optimizer.add_param_group({"params": late.parameters()})
refused("a group of parameters was added to `sgd1` after State", lambda: state.training.finish())
""")


def test_torch_state_at_no_parameter_and_a_ddp_made_anew_are_refused(program: Program) -> None:
    program("""
from torch.nn.parallel import DistributedDataParallel as DDP
class Flat(torch.optim.SGD):
    def step(self, closure=None):
        self.state["all"]["mean"] = torch.zeros(2)
        return super().step(closure)
hf.init()
flat = Flat(model.parameters())
refused("has state that hangs at none of its parameters", lambda: hf.State(model, flat))
state = hf.State(DDP(model), optimizer)
DDP(torch.nn.Linear(1, 1))  # State does not keep that.
refused("is made anew for a model that State keeps", lambda: DDP(model))
steps = state.steps([1.0, 2.0])
next(steps)
optimizer.state["all"]["mean"] = torch.zeros(2)
refused("has state that hangs at none of its parameters", lambda: next(steps))
""")


def test_torch_state_of_an_optimizer_in_its_attributes_is_refused_in_the_first_steps(
    program: Program,
) -> None:
    program("""
hf.init()
class Own(torch.optim.SGD):
    number, name = 0, ""
    def __init__(self, name):
        super().__init__(torch.nn.Linear(1, 1).parameters())
        self.meter, self.name = None, name
    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        changes[self.name](self)
changes = {
    "number": lambda o: setattr(o, "number", o.number + 1),
    "late": lambda o: setattr(o, "late", torch.zeros(1)),
    "defaults['n']": lambda o: o.defaults.update(n=o.defaults.get("n", 0) + 1),
    "meter": lambda o: setattr(o, "meter", []),
    "": lambda o: o.param_groups[0].update(k=o.param_groups[0].get("k", 0) + 1),
}
wrong = {name: Own(name) for name in changes}
kinds = (
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "SGD"),
)
right = [getattr(torch.optim, k)(torch.nn.Linear(2, 2).parameters()) for k in kinds] + [wrong[""]]
schedulers = [torch.optim.lr_scheduler.StepLR(o, 1) for o in right]
models = [torch.nn.ParameterList(o.param_groups[0]["params"]) for o in (*right, *wrong.values())]
state = hf.State(models, right, [o for n, o in wrong.items() if n], schedulers=schedulers)
for _ in range(3):
    with state.step():
        for o in (*right, *wrong.values()):
            for p in o.param_groups[0]["params"]: p.grad = torch.ones_like(p)
        for o in right: o.step()
        if state.n == 0:
            for name, o in wrong.items():
                if name: refused(f"its step() changes its attribute `{name}", o.step)
        for s in schedulers: s.step()
""")


def test_torch_an_optimizer_that_is_not_kept_may_not_update_what_is(program: Program) -> None:
    program("""
hf.init()
state = hf.State(model)
other = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
with state.step():
    other.step()
    refused("SGD updates parameters of a model that State keeps", optimizer.step)
""")
    program("""
hf.init()
class Wrapper:  # Of its own kind, with an optimizer within.
    def __init__(self): self.inner = optimizer
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
state = hf.State(model, wrapper=Wrapper(), scheduler=scheduler)
with state.step():
    optimizer.step()
    refused("AdamW updates", torch.optim.AdamW(model.parameters()).step)
""")
