"""State and its steps in a world of one: what is counted, said and refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_job import needs_torch
from torch_warm import say

pytestmark = needs_torch

BEGIN = """
import torch, holdfast.torch as hf
from holdfast import UserError
def refused(text, call):
    try:
        call()
    except UserError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""


Program = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Return what runs a program and gives what it says."""
    return lambda text: say(BEGIN + text, tmp_path / "log")


def test_torch_steps_are_counted_over_epochs_and_calls(program: Program) -> None:
    program("""
refused("hf.init()", lambda: hf.State(model, optimizer))
hf.init()
import gc
assert gc.isenabled() and gc.get_freeze_count() > 100_000, gc.get_freeze_count()
state = hf.State(model, optimizer)
refused("already", lambda: hf.State(model))
refused("State(..., more=...)", lambda: state.keep("more", []))
done, seen = [], []
state.on_commit(done.append)
def body(x):
    optimizer.zero_grad(); model(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
    seen.append((state.n, state.epoch, float(torch.rand(1))))
for x in state.steps([1.0, 2.0, 3.0], epochs=2): body(x)
for x in state.steps([1.0, 2.0, 3.0]): body(x)
assert done == list(range(1, 10)), done
assert [s[:2] for s in seen] == [(n, n // 3) for n in range(9)], seen
assert len({s[2] for s in seen}) == 9
assert state.n == 9 and not state.replaying
loader = torch.utils.data.DataLoader([1.0, 2.0, 3.0], batch_size=2)
steps = state.steps(loader, epochs=2)
assert (len(steps), steps.batch_size, steps.dataset) == (4, 2, [1.0, 2.0, 3.0])
assert next(steps).tolist() == [1.0, 2.0] and [x.tolist() for x in steps][0] == [3.0]
assert not hasattr(steps, "_loader") and not hasattr(state.steps([1.0]), "dataset")
refused("can not tell", lambda: next(state.steps(iter([1]))))
""")


def test_torch_break_ends_after_its_step_and_an_exception_before_it(program: Program) -> None:
    program("""
hf.init()
state = hf.State(model, optimizer)
def body(x):
    optimizer.zero_grad(); model(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
for x in state.steps([1.0, 2.0, 3.0, 4.0]):
    body(x)
    if x == 2.0: break
assert state.n == 2, state.n
def bar(steps):  # As a progress bar.
    for x in steps: yield x
for how in (lambda steps: steps, bar):
    try:
        for x in how(state.steps([1.0, 2.0])):
            body(x)
            raise KeyError
    except KeyError:
        pass
    assert state.n == 2, state.n
with state.step(): body(1.0)
assert state.n == 3, state.n
for x in bar(state.steps([1.0, 2.0])):
    body(x)
    break
assert state.n == 4, state.n
def leave():
    for x in bar(bar(state.steps([1.0, 2.0]))):
        body(x)
        return x
leave()
assert state.n == 5, state.n
held = state.steps([1.0, 2.0])
for x in held:
    body(x)
    break
assert state.n == 6, state.n
refused("call state.steps(loader) again", lambda: next(held))
from itertools import islice
for x in islice(state.steps([1.0, 2.0, 3.0]), 2): body(x)
for _, x in zip(range(1), state.steps([1.0, 2.0, 3.0])): body(x)
assert state.n == 9, state.n
with state.step(): body(1.0)
given = []
for x in state.steps([1.0, 2.0, 3.0], epoch=20):  # What is made in other loops is none of its.
    given.append((x, state.batch))
    if x == 1.0:
        refused("`with state.step()` within a step", lambda: state.step().__enter__())
        refused("`state.steps(...)` within a step", lambda: next(state.steps([1.0], epoch=30)))
    body(x)
assert given == [(1.0, 0), (2.0, 1), (3.0, 2)], given
def by_close(it): it.close()
def by_del(it): del it
for n, leave in enumerate((by_close, by_del), 14):
    held = [iter(state.steps([1.0, 2.0], epoch=10 + n))]
    body(next(held[0]))
    leave(held.pop())
    assert state.n == n, (state.n, leave)
refused("pass 20 over the data is done", lambda: next(state.steps([1.0], epoch=20)))
""")


def test_torch_the_last_step_of_batches_taken_by_next_ends_with_the_program(
    program: Program,
) -> None:
    text = """
from holdfast.torch import _engine
hf.init()
state = hf.State(model, optimizer)
done = []
state.on_commit(done.append)
batches = iter(state.steps([1.0, 2.0], epochs=2))
for _ in range(3):
    optimizer.zero_grad(); model(torch.ones(1, 2) * next(batches)).sum().backward()
    optimizer.step()
assert done == [1, 2] and state.n == 2, (done, state.n)
"""
    program(f"""{text}
torch.distributed.destroy_process_group()
assert done == [1, 2, 3], done
del batches
""")
    program(f"""{text}
_engine.engine.marked = True  # Another process was lost in the last step.
weight = model.weight.tolist()
refused("step 3 was void when the program ended", _engine.engine.end)
refused("all processes start again from step 2", _engine.engine.end)
del batches
assert model.weight.tolist() == weight and done == [1, 2], done
_engine.engine.unmade = ""
""")


def test_torch_an_iterator_of_a_function_is_not_held_when_it_is_dropped(program: Program) -> None:
    program("""
hf.init()
state = hf.State(model, optimizer)
def run():
    for epoch in range(2):
        batches = iter(state.steps([1.0, 2.0]))
        for _ in range(2):
            optimizer.zero_grad(); model(torch.ones(1, 2) * next(batches)).sum().backward()
            optimizer.step()
    del batches
    assert state.n == 4, state.n
run()
""")


def test_torch_whoever_ends_the_program_with_a_code_is_heard(program: Program) -> None:
    program("""
from holdfast.torch import _engine
import contextlib, os, sys
hf.init()
state = hf.State(model, optimizer)
def left_by(how):
    codes = []
    try:
        for x in state.steps([1.0, 2.0]):
            how()
    except (SystemExit, KeyError):
        codes.append(_engine.engine.exit_code)
    try:
        with state.step():
            assert _engine.engine.exit_code is None
            how()
    except (SystemExit, KeyError):
        codes.append(_engine.engine.exit_code)
    return codes
def fail(error, wait=contextlib.nullcontext()):
    with wait:
        raise error
assert left_by(lambda: fail(SystemExit(3))) == [3, 3]
assert left_by(lambda: fail(SystemExit("a sentence"), open(os.devnull))) == [1, 1]
try:
    for x in state.steps([1.0, 2.0]):
        with open(os.devnull):
            raise SystemExit(6)
except SystemExit as first:
    known = first  # That of an earlier try is no later one's.
    assert _engine.engine.exit_code == 6
assert [c or 0 for c in left_by(lambda: fail(SystemExit))] == [0, 0]
assert left_by(lambda: fail(KeyError())) == [None, None]
assert left_by(lambda: sys.exit(2)) == [2, 2]
sys.stdin = None  # Which they would close.
for word in (exit, quit):
    _engine.engine.exit_code = None
    try:
        word(4)
    except SystemExit:
        assert _engine.engine.exit_code == 4
_engine.engine.exit_code = None
""")


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
noted(state._session, "begin_step")  # Where a rank stops, if a fault came.
noted(state._image, "read")
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


def test_torch_what_follows_a_pass_that_is_left_before_an_update_is_kept(program: Program) -> None:
    program("""
hf.init()
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
state = hf.State(model, optimizer, scheduler=scheduler)
for i, x in enumerate(state.steps([1.0] * 3)):
    if i == 2:
        break
    optimizer.step()
assert state.n == 2, state.n
scheduler.step()
usual = state._session.begin_step
state._session.begin_step = lambda: usual() or True  # The group was formed anew in between.
for x in state.steps([1.0]):
    assert optimizer.param_groups[0]["lr"] == 0.05
    optimizer.step()
""")


def test_torch_who_asks_for_the_epoch_says_which_one_a_pass_is(program: Program) -> None:
    program("""
hf.init()
state = hf.State(model, optimizer)
assert state.epoch == 0
refused("steps(loader, epoch=epoch)", lambda: state.steps([1.0]))
seen = []
for epoch in range(state.epoch, 3):
    for x in state.steps([1.0, 2.0], epoch=epoch):
        seen.append((state.epoch, x))
assert state.n == 6 and state.epoch == 3, (state.n, state.epoch)
assert len(seen) == 6
refused("pass 1 over the data is done", lambda: next(state.steps([1.0], epoch=1)))
""")


def test_torch_a_list_that_is_empty_yet_and_a_generators_seed_are_kept(program: Program) -> None:
    program("""
hf.init()
seen = []
from holdfast.torch import _random
generator = torch.Generator().manual_seed(5)
state = hf.State(model, optimizer, seen=seen, generator=generator)
loader = torch.utils.data.DataLoader([1.0, 2.0], shuffle=True, generator=generator)
for x in state.steps(loader): pass
_random._LAST.clear(); _random._PASSES.clear()  # As in a replacement.
assert _random.seed_of(generator) != 5
state._restore()
assert _random.seed_of(generator) == 5
for x in state.steps([1.0, 2.0]): seen.append(x)
seen.append("lost")
state._restore()
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
    said = program("""
torch.__version__ = "2.99.0"
hf.init()
""")
    assert "torch 2.99.0 was not tried; those that were: 2.13" in said


def test_torch_is_missing_and_said_to_be() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import holdfast\n"
        "try:\n    import holdfast.torch\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert done.stdout == (
        "holdfast.torch needs PyTorch, which is not installed here; pip install torch==2.13.0\n"
    ), done.stderr


def test_torch_under_another_launcher_the_right_one_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import holdfast.torch as hf; hf.init()"],
        env=dict(os.environ, WORLD_SIZE="2", RANK="0"),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "start the program with `holdfast run --nproc-per-node N program.py`" in done.stderr


def test_torch_models_and_optimizers_are_kept_wherever_they_stand(program: Program) -> None:
    program("""
hf.init()
nets, made = {"one": model}, [[optimizer], None]
state = hf.State(made, nets=nets)
for x in state.steps([1.0, 2.0]):
    optimizer.zero_grad(); model(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
was = model.weight.detach().clone()
with torch.no_grad(): model.weight.zero_()
state._restore()
assert nets["one"] is model and torch.equal(model.weight, was), (was, model.weight)
""")


def test_torch_a_model_may_be_given_twice_and_a_dict_may_hold_itself(program: Program) -> None:
    program("""
hf.init()
ddp = torch.nn.parallel.DistributedDataParallel(model)
settings = {"rate": 1.0}
settings["self"] = settings
state = hf.State(ddp, optimizer, nets={"one": ddp}, whole=torch.nn.Sequential(ddp), s=settings)
assert state._ddp == [ddp]
for x in state.steps([1.0, 2.0]):
    optimizer.zero_grad(); ddp(torch.ones(1, 2) * x).sum().backward(); optimizer.step()
was = model.weight.detach().clone()
with torch.no_grad(): model.weight.zero_()
settings["rate"] = 7.0
state._restore()
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
state._restore()
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
state._kept._add_model("again", torch.nn.Sequential(telling))  # As the next life would.
refused("restarts: `get_extra_state() of again.0` is kept, in the state it is missing",
        lambda: state._kept._compare_others({"kinds": {}, "others": {}, "extras": {}}))
state._kept._extras.clear()
refused("restarts: `get_extra_state() of model1.0` is missing, in the state it is kept",
        lambda: state._kept._compare_others(
            {"kinds": {}, "others": {}, "extras": {"get_extra_state() of model1.0": 1}}))
del telling.mean
def step():
    with state.step(): pass
refused("buffer `0.mean` of `model1` was removed after State was made", step)
refused("buffer `0.mean` of `model1` was removed after State was made", state._restore)
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
refused("a group of parameters was added to `sgd1` after State", lambda: state._finish())
""")


def test_torch_enumerate_counts_a_step_that_is_made_again_once(program: Program) -> None:
    told = program("""
from holdfast.torch import _engine
hf.init()
state = hf.State(model, optimizer)
def bar(steps):  # As of tqdm.
    for x in steps:
        yield x
seen = []
def see(*what, to=seen): to.append(what)
for epoch in range(2):
    for i, x in enumerate(bar(state.steps([1.0] * 3)), 1):
        see(state.batch == i - 1, state.n == 3 * epoch + i - 1)
        _engine.engine.marked = i == 3 - epoch and not state.replaying
    seen.append((state.batch == 0, state.n == 3 * epoch + 3))
assert seen == [(True, True)] * 10, (seen, state.n)
for i, x in enumerate([1.0] * 3):
    for y in state.steps([x]):
        assert state.batch == 0
with state.step():
    assert state.batch == 0
assert state.batch == 1
""")
    assert "enumerate" not in told
    told = program("""
hf.init()
state = hf.State(model, optimizer)
def pairs(steps):
    for x in steps:
        if state.n % 2:
            yield x
for epoch in range(2):
    for i, x in enumerate(pairs(state.steps([1.0] * 4))):
        assert state.batch == 2 * i + 1
""")
    assert told.count("the `enumerate` around state.steps(...) counts otherwise") == 1, told
    assert "`state.batch`" in told


def test_torch_what_a_replacement_would_do_otherwise_is_told_at_the_start(program: Program) -> None:
    again = "saves a file between two passes"
    told = program("""
import io
hf.init()
state = hf.State(model, optimizer)
usual = torch.save
for _ in range(3):
    for x in state.steps([1.0, 2.0]):
        torch.save(0, io.BytesIO())
        assert torch.save is usual
    if state.n < 5:
        torch.save(0, io.BytesIO())
        model.eval()
for _ in range(2):
    with state.step():
        pass
while state.n < 9:
    with state.step():
        pass
torch.save(0, io.BytesIO())
""")
    assert told.count(again) == 1 and f":23 {again}" in told, told
    assert told.count(":24 evaluates between two passes") == 1, told
    assert told.count("the loop around `with state.step()` is a `for`") == 1
    told = program("""
import io
hf.init()
state = hf.State(model, optimizer)
for epoch in range(state.epoch, 2):
    for x in state.steps([1.0], epoch=epoch):
        pass
    torch.save(0, io.BytesIO())
    model.eval()
while state.n < 3:
    with state.step():
        pass
""")  # One log for both, and nothing of the second.
    assert [told.count(what) for what in (again, "is a `for`", "evaluates between")] == [1, 1, 1]


def test_torch_a_batch_has_one_number_however_often_it_is_made(program: Program) -> None:
    program("""
hf.init()
state = hf.State(model, optimizer)
seen = []
def see(batch, to=seen): to.append(batch)
for x in state.steps([1.0] * 3):
    see(state.batch)
    state._engine.marked = state.batch == 1 and not state.replaying
assert seen == [0, 1, 1, 2], seen
for x in state.steps([1.0] * 3, epoch=1):
    if state.batch == 1:
        break
assert state.n == 4, state.n
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
