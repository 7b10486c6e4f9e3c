"""Random numbers and data are the program's own on each rank, and the same in a successor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch_job import Job, needs_torch
from torch_small import BEGIN, small, survives
from torch_warm import say

pytestmark = needs_torch

STATE = """
import random, numpy, torch, holdfast.torch as hf
from holdfast import UserError
from holdfast.torch import _engine
hf.init()
"""


def test_torch_each_step_draws_by_what_the_program_has_seeded(tmp_path: Path) -> None:
    text = """
torch.manual_seed(SEED); random.seed(SEED); numpy.random.seed(SEED)
state = hf.State(torch.nn.Linear(2, 2))
drawn = []
for x in state.steps([1.0, 2.0, 3.0]):
    drawn.append((float(torch.rand(())), random.random(), float(numpy.random.rand())))
    _engine.engine.marked = x == 2.0 and not state.replaying
assert drawn[1] == drawn[2] and len(set(drawn)) == 3, drawn
print(drawn)
"""
    found = []
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        said = say(STATE + text.replace("SEED", seed), tmp_path / name)
        found.append([line for line in said.splitlines() if line.startswith("[(")])
    assert found[0] == found[1] != found[2]
    parts = [[list(step) for step in zip(*eval(f[0]))] for f in (found[0], found[2])]
    assert all(one != other for one, other in zip(*parts))  # Each library has a seed of its own.


# Ranks with the same seed draw the same, as under torchrun.
SHARED = """
torch.manual_seed(5); random.seed(5)
state = hf.State(model, optimizer)
run = state.vars(coins=[], mine=[])
for epoch in state.epochs(2):
    for x in state.steps(data):
        coin = bool(torch.rand(()) < 0.5)
        run.coins.append(coin)
        if coin:
            dist.all_reduce(torch.ones(1))
        at(state.n)
        train(x)
    if random.random() < 0.5:
        state.once(dist.barrier)
leave(run.coins)
"""


@pytest.mark.kill
def test_torch_ranks_that_share_a_seed_go_on_sharing_draws(tmp_path: Path) -> None:
    results, _ = survives(tmp_path, SHARED, [[1, 2], [0, 4]])
    assert results[0][0] == results[1][0] and set(results[0][0]) == {False, True}


# Nothing is seeded: the data are those that the rank's first process drew.
UNSEEDED = """
import random
import numpy
random.seed(); numpy.random.seed(); torch.seed()
hf.init()
rank = dist.get_rank()
made = [random.random(), float(numpy.random.rand()), float(torch.rand(()))]
with open(f"{folder}/made-{rank}", "a") as file:
    file.write(json.dumps(made) + "\\n")
state = hf.State(model := DDP(torch.nn.Linear(4, 2)))
for x in state.steps([1.0, 2.0, 3.0]):
    dist.barrier()
    at(state.n)
    made.append(float(torch.rand(())))
json.dump(made[:3], open(f"{folder}/result-{rank}", "w"))
"""


@pytest.mark.kill
def test_torch_a_replacement_draws_what_its_predecessor_drew(tmp_path: Path) -> None:
    head = BEGIN.partition("torch.manual_seed")[0]
    head = head.replace("hf.init()\nrank = dist.get_rank()\n", "")
    folder = tmp_path / "job"
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(head + UNSEEDED)
    from torch_warm import by_hand

    words = [str(program), json.dumps({"kills": [[1, 1], [0, 2]]}), str(folder)]
    ended_well, said = by_hand(folder, words, 2, deaths=2)
    assert ended_well, said
    made = [(folder / f"made-{rank}").read_text().splitlines() for rank in (0, 1)]
    assert [len(lines) for lines in made] == [2, 2] and made[0][0] != made[1][0]
    assert all(first == second for first, second in made)


SPARE = """
import random, time
import numpy, torch, holdfast.torch as hf, json, os, sys
folder = sys.argv[2]
random.seed(); numpy.random.seed(); torch.seed()
hf.init()
torch.manual_seed(1)
data = [torch.full((3, 4), numpy.random.rand()) for _ in range(4)]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = hf.State(model, optimizer)
rank = torch.distributed.get_rank()
for x in state.steps(data):
    if state.n == 2 and rank == 1 and not os.path.exists(f"{folder}/killed"):
        while not os.path.exists(f"{folder}/go"): time.sleep(0.01)  # A spare starts idle.
        open(f"{folder}/killed", "x").close()
        os.kill(os.getpid(), 9)
    optimizer.zero_grad()
    (model(x) ** 2).mean().backward()
    optimizer.step()
open(f"{folder}/result-{rank}", "w").write(json.dumps(state.n))
"""


@pytest.mark.kill
def test_torch_a_spare_that_drew_what_its_rank_did_not_is_replaced(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SPARE)
    job = Job(tmp_path / "job", {}, spares=1, program=program)
    try:
        job.until(lambda trace: any(e["event"] == "waiting" for e in trace), "a spare that waits")
        (job.folder / "go").touch()
        results: Any = job.end()
    finally:
        job.stop()
    assert results == {0: 4, 1: 4}
    assert "this spare drew random numbers between hf.init() and hf.State(...)" in job.logs()


class_of_data = """
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i): return ITEM
class Own(Data):
    def __init__(self): self.rng = numpy.random.default_rng(1)
"""


@pytest.mark.parametrize(
    ("item", "refused"),
    [
        ("torch.tensor(self.rng.random(3))", True),
        ("{'x': [self.rng.random(), i]}", True),
        ("torch.rand(3) + random.random() + float(numpy.random.rand())", False),
        ("(numpy.random.default_rng(i).random(2), i, {'name': str(i)})", False),
        ("torch.tensor(float('nan')) if i else object()", False),
    ],
)
def test_torch_a_data_set_that_draws_by_a_generator_of_its_own_is_named(
    tmp_path: Path, item: str, refused: bool
) -> None:
    text = """
state = hf.State(torch.nn.Linear(2, 2))
data = Own() if REFUSED else Data()
loader = torch.utils.data.DataLoader(data, batch_size=2, collate_fn=list)
was = torch.get_rng_state(), random.getstate()
try:
    seen = [x for x in state.steps(loader)]
except UserError as error:
    print("refused", error)
else:
    assert len(seen) == 4 == state.n
"""
    text = class_of_data.replace("ITEM", item) + text.replace("REFUSED", str(refused))
    said = say(STATE + text, tmp_path / "log")
    assert ("refused the data set Own holds a generator of its own" in said) == refused, said


def test_torch_a_batch_may_hold_what_nobody_can_compare(tmp_path: Path) -> None:
    # A data set is not checked if it has no item 0, or fails when it is asked for that.
    text = """
state = hf.State(model, optimizer)
class Odd(torch.utils.data.Dataset):
    def __len__(self): return 6
    def __getitem__(self, i):
        if torch.utils.data.get_worker_info() is None: raise RuntimeError("in a worker only")
        return torch.randn(4) + i
loader = torch.utils.data.DataLoader(Odd(), batch_size=2, num_workers=1)
for x in state.steps(loader):
    train(x)
leave(state.n)
"""
    results, said = small(tmp_path / "job", text, ranks=1)
    assert results is not None and results[0][0] == 3, said


# Draws outside of steps: before the loop after a once(), at the beginning of an epoch, and between
# the steps and the end of an epoch.
OUTSIDE = """
state = hf.State(model, optimizer)
def base(): return float(torch.rand(()))
state.once(base)
bias = torch.randn(3, 4)
run = state.vars(seen=[])
for epoch in state.epochs(3):
    order = torch.randperm(3).tolist()
    noise = random.random()
    for x in state.steps([data[i] for i in order]):
        train(x * noise + bias)
        at("end", state.n)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.01 * torch.randn_like(p))
    run.seen.append((order, noise, random.random()))
    at("after", epoch)
leave(run.seen)
"""


@pytest.mark.kill
def test_torch_what_is_drawn_outside_of_steps_is_drawn_again_alike(tmp_path: Path) -> None:
    survives(tmp_path, OUTSIDE, [[0, "end", 1], [1, "end", 5], [0, "after", 1], [1, "after", 2]])


BETWEEN_OWN = """
state = hf.State(torch.nn.Linear(2, 2))
while state.n < 3:
    torch.rand(())
    with state.step(): pass
"""


def test_torch_a_draw_between_steps_of_a_loop_of_ones_own_is_named(tmp_path: Path) -> None:
    wanted = "random numbers were drawn between two steps of a loop of your own"
    assert wanted in say(STATE + BETWEEN_OWN, tmp_path / "between")
    within = BETWEEN_OWN.replace("    torch.rand(())\n", "").replace("pass", "torch.rand(())")
    assert wanted not in say(STATE + within, tmp_path / "within")
