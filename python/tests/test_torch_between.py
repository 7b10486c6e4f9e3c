"""What a program does between its passes over data survives a fault, as its steps do."""
# With --ci: whole programs with passes and what lies between.

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_job import Job, run

pytest.importorskip("torch")
pytestmark = pytest.mark.kill

PROGRAM = """
import holdfast; holdfast.init()
import json, os, signal, sys, torch, torch.distributed as dist, holdfast.torch as hf
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
config, folder = json.loads(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
hf.init()
rank = dist.get_rank()
def at(*place):
    if [rank, *place] in config["kills"]:
        try:
            open(f"{folder}/killed-{rank}-{place}", "x").close()
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
average = AveragedModel(model.module)
if config["validates"]:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
else:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
state = hf.State(model, optimizer, average, scheduler=scheduler)
data = [torch.randn(3, 4, generator=torch.Generator().manual_seed(8 * rank + i)) for i in range(3)]
told = []  # By the others; nothing that State keeps.
for epoch in range(4):
    for i, x in enumerate(state.steps(data)):
        assert i == state.batch, (i, state.batch)
        at(epoch, "step", i)
        optimizer.zero_grad()
        loss = (model(x) ** 2).mean()
        loss.backward()
        optimizer.step()
    last = [loss.item()]  # A replacement that passes over the pass has not set it.
    at(epoch, "before")
    average.update_parameters(model.module)
    if config["validates"]:
        loss = model(data[0]).detach().sum() + rank
        dist.all_reduce(loss)
        scheduler.step(loss.item())
        word = [f"after {epoch}: {min(told, default=0.0)}" if rank == 0 else None]
        dist.broadcast_object_list(word, src=0)
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (rank, loss.item()))
        told += [loss.item(), str(word), str(everyone)] if rank else [loss.item()]
    else:
        scheduler.step()
    at(epoch, "after")
result = [state.n, scheduler.state_dict()["last_epoch"], optimizer.param_groups[0]["lr"]]
for things in (model.state_dict(), average.state_dict()):
    result += [t.tolist() for t in things.values()]
result += [optimizer.state[p]["momentum_buffer"].tolist() for p in model.parameters()] + told + last
json.dump(result, open(f"{folder}/result-{rank}", "w"))
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("ranks", "validates", "kills"),
    [
        # A replacement that passes over epochs; a survivor whose first step of an epoch is void;
        # one that has done what comes between, when the other has not.
        (2, False, [[0, 1, "step", 0], [1, 2, "before"], [0, 3, "step", 1]]),
        # The other had its answer when the replacement asked; it was lost before it asked.
        (2, True, [[1, 1, "step", 0], [0, 3, "before"]]),
        (1, True, [[0, 1, "after"], [0, 3, "before"]]),  # Nobody else was told.
    ],
    ids=["a schedule per epoch", "an evaluation that the schedule goes by", "one of one process"],
)
def test_torch_what_is_done_between_epochs_is_done_once(
    tmp_path: Path, ranks: int, validates: bool, kills: list[list[Any]]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    config = {"validates": validates, "kills": []}
    options = ("--max-restarts", "9")  # Of one rank, as long as its steps are too quick to be seen.
    calm = run(tmp_path / "calm", config, ranks=ranks, program=program)
    assert calm[0][0] == 12 and calm[0][1] == 4, calm  # type: ignore[index]
    config["kills"] = kills
    results = run(tmp_path / "job", config, ranks=ranks, program=program, options=options)
    assert len(list((tmp_path / "job").glob("killed-*"))) == len(kills)
    assert results == calm
    said = (tmp_path / "job" / "log" / "worker_0.log").read_text()  # Of all who had the rank.
    assert "the `enumerate` around" not in said


UNFREEZES = """
import holdfast; holdfast.init()
import json, os, signal, sys, torch, holdfast.torch as hf
config, folder = json.loads(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
hf.init()
torch.manual_seed(1)
body, head = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2)
model = torch.nn.Sequential(body, head)
body.requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
state = hf.State(model, optimizer)
data = [torch.randn(3, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
for epoch in range(state.epoch, 3):
    if epoch == 1:
        body.requires_grad_(True)
        body.eval()  # Its statistics are frozen.
    for x in state.steps(data, epoch=epoch):
        if state.n in config["kills"] and not os.path.exists(f"{folder}/killed-{state.n}"):
            open(f"{folder}/killed-{state.n}", "x").close()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        (model(x) ** 2).mean().backward()
        optimizer.step()
result = [t.tolist() for t in model.state_dict().values()] + [state.n, len(optimizer.state)]
json.dump(result, open(f"{folder}/result-0", "w"))
"""


def test_torch_what_was_unfrozen_in_one_epoch_is_so_in_a_later_ones_successor(
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(UNFREEZES)
    calm = run(tmp_path / "calm", {"kills": []}, ranks=1, program=program)
    results = run(tmp_path / "job", {"kills": [3, 7]}, ranks=1, program=program)
    assert len(list((tmp_path / "job").glob("killed-*"))) == 2
    assert results == calm
    assert calm[0][-2:] == [9, 4]  # type: ignore[index]


def test_torch_a_loop_of_ones_own_is_told_of_what_it_changes_between_steps(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys, torch, holdfast.torch as hf\n"
        "hf.init()\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "seen, late = [], []\n"
        "state = hf.State(model, optimizer, seen=seen, late=late)\n"
        "while state.n < 3:\n"
        "    with state.step():\n"
        "        seen.append(state.n)\n"
        "    if state.n == 2: late.append(1)\n"
        "open(sys.argv[2] + '/result-0', 'w').write('[]')\n"
    )
    run(tmp_path / "job", {}, ranks=1, program=program)
    said = (tmp_path / "job" / "log" / "worker_0.log").read_text()
    assert said.count("was changed between two steps") == 1
    assert "`late` was changed" in said


SNAPSHOTS = """
import os, signal, sys, torch, holdfast.torch as hf
folder, start = sys.argv[2], 0
hf.init()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if os.path.exists(folder + "/snapshot"):
    start = int(open(folder + "/snapshot").read())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
state = hf.State(model, optimizer, scheduler=scheduler)
def at(n):
    if n == {at} and not os.path.exists(folder + "/killed"):
        open(folder + "/killed", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
for epoch in {passes}:
    for x in state.steps([torch.ones(1, 2)] * 2{which}):
        at(state.n)
        model(x).sum().backward()
        optimizer.step()
    scheduler.step()
    open(folder + "/snapshot", "w").write(str(int(epoch) + 1))
    at(state.n - 0.5)
open(folder + "/result-0", "w").write(str([state.n, scheduler.last_epoch]))
{end}
"""


@pytest.mark.parametrize("end", ["", "torch.distributed.destroy_process_group()"])
def test_torch_a_loop_that_begins_at_a_snapshots_epoch_does_not_end_as_if_all_was_done(
    tmp_path: Path, end: str
) -> None:
    program = tmp_path / "program.py"
    # No variable says which pass it is.
    passes = "map(str, range(start, 6))"
    program.write_text(SNAPSHOTS.format(passes=passes, which="", at=9, end=end))
    job = Job(tmp_path / "job", {}, 1, program=program, options=("--max-restarts", "1"))
    job.end(code=1)
    said = (tmp_path / "job" / "log" / "worker_0.log").read_text()
    assert "ends after 2 passes over its data, but 4 were done" in said
    assert "state.steps(loader, epoch=epoch)" in said


@pytest.mark.parametrize(
    ("at", "begin"), [(8, "max(start, state.epoch)"), (7.5, "state.epoch if state.n else start")]
)
def test_torch_a_loop_that_says_which_pass_it_is_may_begin_at_a_snapshots_epoch(
    tmp_path: Path, at: float, begin: str
) -> None:
    program = tmp_path / "program.py"
    passes = f"range({begin}, 6)"
    program.write_text(SNAPSHOTS.format(passes=passes, which=", epoch=epoch", at=at, end=""))
    assert run(tmp_path / "job", {}, ranks=1, program=program) == {0: [12, 6]}


def test_torch_a_loop_that_begins_past_what_nobody_has_kept_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    passes = "range(max(start, state.epoch), 6)"
    program.write_text(SNAPSHOTS.format(passes=passes, which=", epoch=epoch", at=7.5, end=""))
    job = Job(tmp_path / "job", {}, 1, program=program, options=("--max-restarts", "1"))
    job.end(code=1)
    said = (tmp_path / "job" / "log" / "worker_0.log").read_text()
    assert "begins with pass 4, past what it does before" in said
    assert "range(state.epoch if state.n else EPOCH, ...)" in said


@pytest.mark.parametrize("at", [5, 8])
def test_torch_a_loop_that_begins_at_a_snapshots_epoch_is_seen_by_its_variable(
    tmp_path: Path, at: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(SNAPSHOTS.format(passes="range(start, 6)", which="", at=at, end=""))
    assert run(tmp_path / "job", {}, ranks=1, program=program) == {0: [12, 6]}
    said = (tmp_path / "job" / "log" / "worker_0.log").read_text()
    assert f"(`epoch`), so this is taken for pass {at // 2}" in said
