"""state.epochs(...), state.steps(...) and state.stop() through kills: what runs again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_job import needs_torch
from torch_small import small, survives
from torch_warm import say

pytestmark = [pytest.mark.kill, needs_torch]

# A loop with all that may lie between epochs. `begun` is not kept: it tells what a process did.
EPOCHS = """
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
state = hf.State(model, optimizer, scheduler=scheduler)
run = state.vars(best=math.inf, seen=[], top=0)
def evaluate(which):
    model.eval()
    loss = model(data[which]).detach().sum() + rank
    at("evaluates", state.epoch)
    dist.all_reduce(loss)
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (rank, loss.item()))
    model.train()
    return loss.item(), everyone
begun = []
for epoch in state.epochs(4, start=config.get("start", 0)):
    begun.append(epoch)
    run.top += epoch  # At the top: once in each epoch, whoever is lost.
    at("top", epoch)
    for x in state.steps(data):
        at("step", epoch, state.batch)
        run.seen.append((epoch, state.batch, state.n))
        train(x)
        at("end", epoch, state.batch)
    at("before", epoch)
    first, told = state.once(evaluate, 0)
    at("between", epoch)
    second, _ = state.once(evaluate, 1)
    assert model.training and told[1 - rank][0] == 1 - rank
    scheduler.step(first)
    run.best = min(run.best, second)
    at("after", epoch)
leave(state.n, run.seen, run.top, run.best, scheduler.last_epoch, first, told, second)
"""


@pytest.mark.parametrize(
    "kills",
    [
        [[0, "step", 1, 0], [1, "before", 2], [0, "step", 3, 1]],
        [[1, "evaluates", 0], [0, "between", 1], [1, "after", 2], [0, "after", 3]],
        [[0, "top", 1], [1, "top", 2], [0, "end", 2, 2], [1, "end", 3, 2]],
    ],
    ids=["in steps and after them", "in evaluations and after them", "at the top and the end"],
)
def test_torch_an_epoch_is_made_once_whoever_is_lost(tmp_path: Path, kills: Any) -> None:
    results, _ = survives(tmp_path, EPOCHS, kills)
    n, seen, top, *_ = results[0]
    assert (n, top) == (12, 6)
    assert seen == [[e, b, 3 * e + b] for e in range(4) for b in range(3)]


def test_torch_the_first_start_alone_begins_at_start(tmp_path: Path) -> None:
    results, _ = survives(tmp_path, EPOCHS, [[1, "step", 3, 1], [0, "before", 2]], start=2)
    n, seen, top, *_ = results[0]
    assert (n, top, seen[0]) == (6, 5, [2, 0, 0])


def test_torch_epochs_of_a_job_of_one_process(tmp_path: Path) -> None:
    text = EPOCHS.replace(" and told[1 - rank][0] == 1 - rank", "")
    kills = [[0, "step", 0, 0], [0, "evaluates", 0], [0, "top", 2], [0, "after", 3]]
    survives(tmp_path, text, kills, ranks=1)


TWO = """
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
state = hf.State(model, optimizer, scheduler=scheduler)
run = state.vars(first=[], second=[])
for epoch in state.epochs(3):
    for i, x in enumerate(data):
        for y in state.steps([x, x + 1]):  # Three calls of an epoch, each known by its turn.
            at(epoch, i, state.batch)
            run.first.append((epoch, i, state.batch, train(y)))
        scheduler.step()
        at(epoch, i, "after")
    for x in state.steps(data[:1]):
        at(epoch, "second")
        run.second.append(train(x))
leave(state.n, run.first, run.second, scheduler.last_epoch)
"""


def test_torch_an_epoch_may_have_several_loops_over_data(tmp_path: Path) -> None:
    kills = [[0, 0, 1, 0], [1, 0, 2, 1], [0, 1, 0, "after"], [1, 1, "second"], [0, 2, 1, 0]]
    results, _ = survives(tmp_path, TWO, kills)
    assert (results[0][0], results[0][3]) == (21, 9)


STOPS = """
state = hf.State(model, optimizer)
run = state.vars(bad=0, epochs=0)
for epoch in state.epochs(9):
    for x in state.steps(data):
        at("begin", state.n)
        train(x)
        if config["where"] == "step" and (state.n, rank) == (4, 1):
            state.stop()  # One rank's word is enough.
        at("end", state.n)
    run.epochs += 1
    at("after", epoch)
    if config["where"] == "epoch" and (epoch, rank) == (1, 0):
        state.stop()
    at("said", epoch)
leave(state.n, run.epochs, state.stopped)
"""


@pytest.mark.parametrize(
    ("where", "kills", "n"),
    [
        # Kills in the step with stop(), which is void then: of the caller, and of another rank.
        ("step", [[0, "end", 4]], 5),
        ("step", [[1, "end", 4], [0, "after", 1]], 5),
        ("epoch", [[0, "said", 1]], 6),
        ("epoch", [[1, "after", 1], [0, "begin", 4]], 6),
    ],
)
def test_torch_stop_ends_all_loops_on_all_ranks(
    tmp_path: Path, where: str, kills: Any, n: int
) -> None:
    results, said = survives(tmp_path, STOPS, kills, where=where)
    assert [result[:3] for result in results] == [[n, 2, True]] * 2
    assert "was left within step" not in said


STOPPED_LATER = """
state = hf.State(model, optimizer)
for x in state.steps(data, epochs=3):
    train(x)
    if state.n == 4:
        state.stop()
at("done", state.n)
dist.barrier()
leave(state.n, state.epoch, state.stopped)
"""


def test_torch_a_stop_in_a_later_epoch_outlives_who_is_lost_after_the_loop(tmp_path: Path) -> None:
    survives(tmp_path, STOPPED_LATER, [[0, "done", 5], [1, "done", 5]])


def test_torch_what_was_unfrozen_in_one_epoch_is_so_in_a_later_ones_successor(
    tmp_path: Path,
) -> None:
    text = """
net[0].requires_grad_(False)
model = DDP(net, find_unused_parameters=True)
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
state = hf.State(model, optimizer)
for epoch in state.epochs(3):
    if epoch == 1:
        net[0].requires_grad_(True)
        net[1].eval()  # Its statistics are frozen.
    for x in state.steps(data):
        at(state.n)
        optimizer.zero_grad()
        loss = (net(x) ** 2).mean()
        loss.backward()
        optimizer.step()
parts = [t.tolist() for t in net.state_dict().values()]
json.dump([state.n, len(optimizer.state), parts], open(f"{folder}/result-{rank}", "w"))
"""
    results, _ = survives(tmp_path, text, [[0, 3], [0, 7]], ranks=1)
    assert results[0][:2] == [9, 6]


def test_torch_a_checkpoint_is_loaded_after_state(tmp_path: Path) -> None:
    text = """
state = hf.State(model, optimizer)
path = config["path"]
if state.n == 0 and os.path.exists(path):
    found = torch.load(path)
    model.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
def save():
    if rank == 0:
        what = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(what, path + ".new")
        os.replace(path + ".new", path)
for epoch in state.epochs(2):
    for x in state.steps(data):
        at(config["run"], state.n)
        train(x)
    state.once(save)
    at(config["run"], "saved", epoch)
leave(state.n)
"""
    found = []
    killed = [[[0, 1, 4], [1, 1, "saved", 0]], [[1, 2, 1]]]
    for name, kills in (("calm", [[], []]), ("job", killed)):
        folder = tmp_path / name
        folder.mkdir()
        for run, these in enumerate(kills, 1):
            path = str(folder / "snapshot.pt")
            results, said = small(folder / f"run-{run}", text, these, run=run, path=path)
            assert results is not None, said
            found.append(results)
    assert found[:2] == found[2:] and found[0] != found[1]


@pytest.mark.parametrize(
    ("text", "kills", "says"),
    [
        (
            "for epoch in range(3):\n    for x in state.steps(data): train(x)\nleave()\n",
            [],
            "state.steps(...) was called before, and outside of state.epochs(...)",
        ),
        (
            "for x in state.steps(data): train(x)\nfor e in state.epochs(2): pass\nleave()\n",
            [],
            "state.epochs(...) is one loop around all state.steps(...) of the program",
        ),
        (
            "for x in state.steps(data[:2]):\n    train(x)\n    at(state.n)\n"
            "    if state.n: break\nleave(state.n)\n",
            [],
            "",
        ),
        (
            "begun = state.n == 0\nif begun:\n    for x in state.steps(data):\n"
            "        train(x)\n        at(state.n)\nleave()\n",
            [[0, 1]],
            "the program ends before it comes to the step after 1",
        ),
        (
            "batches = iter(state.steps(data))\ntrain(next(batches))\nleave()\n",
            [],
            "the program ends within a step: nobody asked for the batch after it",
        ),
    ],
    ids=["a second call", "epochs after steps", "a break", "no loop", "no end"],
)
def test_torch_a_loop_that_a_replacement_could_not_find_is_an_error(
    tmp_path: Path, text: str, kills: Any, says: str
) -> None:
    begin = "state = hf.State(model, optimizer)\n"
    results, said = small(tmp_path / "job", begin + text, kills, ranks=1 if kills else 2)
    assert (results is None) == bool(says), said
    assert says in said
    if not says:
        assert results is not None and [result[0] for result in results] == [1, 1]
        assert "the loop was left within step 2, which is not done" in said


def test_torch_a_wish_to_stop_outlives_a_void_step_that_it_came_before(tmp_path: Path) -> None:
    say(
        """
import torch, holdfast.torch as hf
from holdfast.torch import _engine
hf.init()
state = hf.State(torch.nn.Linear(2, 2))
@state.on_commit
def see(n):
    if n == 1:
        state.stop()
for x in state.steps([1.0, 2.0, 3.0]):
    _engine.engine.marked = x == 2.0 and not state.replaying
assert state.n == 2 and state.stopped, state.n
""",
        tmp_path / "log",
    )
