"""hf.ParameterServer: the same bits whatever dies, torch's numbers, and refusals by name."""
# With --ci: jobs with parameter servers, and kills of all their kinds of processes.

from __future__ import annotations

import functools
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch_servers
from torch_job import LIMIT_S, needs_torch
from torch_servers import BEGINNING, Kills, Results, start

pytestmark = needs_torch

# Two models at servers: a body whose optimizer has two groups, a parameter of more than a row, and
# one that some ranks use in some steps; and a head whose gradients add up over two steps. The loss
# of step 13 is bad, and its batch left out. `offset`: the steps that an earlier job has made.
TRAINING = (
    BEGINNING
    + """
class Body(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(24, 200)
        self.shift = torch.nn.Parameter(torch.zeros(3))
        self.norm = torch.nn.BatchNorm1d(200)

    def forward(self, x, shifts):
        x = self.first(x)
        return torch.tanh(self.norm(x + self.shift.sum() if shifts else x))


def watched(name):
    usual = getattr(hf.ParameterServer, name)
    def call(self):
        at(name)
        status = usual(self)
        at(name + " done")
        return status
    setattr(hf.ParameterServer, name, call)


for name in ("assign", "pull", "push"):
    watched(name)
torch.manual_seed(rank)  # Rank 0's parameters count.
body, head = Body(), torch.nn.Linear(200, 1)
groups = [{"params": body.first.parameters()}, {"params": [body.shift, *body.norm.parameters()]}]
adam = torch.optim.AdamW(groups, 0.01, weight_decay=0.1)
sgd = torch.optim.SGD(head.parameters(), 0.02, momentum=0.9, nesterov=True)
hf.ParameterServer(body, adam)
hf.ParameterServer(head, sgd)
if config.get("load"):
    hf.load_tables(config["load"])
state = hf.State(body, head, adam, sgd)
first = [p.detach().clone() for p in (*body.parameters(), *head.parameters())]
losses = state.vars(all=[])


def step(n):
    adam.param_groups[1]["lr"] = 0.02 * 0.97**n
    draw = torch.Generator().manual_seed(10 * n + rank)
    x = torch.randn(32, 24, generator=draw)
    at("begin")
    guessed = head(body(x, (n + rank) % 3 == 0)).squeeze(1)
    at("forward")
    loss = (guessed - x.sin().sum(1)).square().mean()
    if n == 13 and rank == 1:
        loss = loss * float("nan")
    state.check(loss, then="skip")
    adam.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(body.parameters(), 1.0)
    adam.step()
    if n % 2:
        sgd.step()
        sgd.zero_grad(set_to_none=n % 4 == 1)
    losses.all.append(loss.item())
    at("update")


def evaluate():
    at("once")
    with torch.no_grad():
        return float(head(body.eval()(torch.ones(4, 24), False)).sum())


while state.n < config["steps"]:
    if state.n % 6 == 0:
        state.once(evaluate)
    with state.step():
        note_place()
        step(state.n + config.get("offset", 0))
    at("between")
score = state.once(evaluate)
if config.get("save"):
    state.once(hf.save_tables, config["save"])
after = [p.detach() for p in (*body.parameters(), *head.parameters())]
moved = [not torch.equal(p, q) for p, q in zip(first, after)]
bits = [hashlib.sha256(p.numpy().tobytes()).hexdigest() for p in after]
result = {"n": state.n, "losses": losses.all, "score": score, "bits": bits, "moved": moved}
result["local"] = len(adam.state) + len(sgd.state)
with open(f"{folder}/result-{rank}", "w") as file:
    json.dump(result, file)
"""
)
STEPS = 24
trained = functools.partial(torch_servers.trained, TRAINING)
ALL = {"steps": STEPS}


def bits_of(results: Results) -> Any:
    assert results[0]["bits"] == results[1]["bits"]
    return results[0]["bits"]


@pytest.fixture(scope="module", name="calm")
def calm_once(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of two workers and one server that nobody kills."""
    results = trained(tmp_path_factory.mktemp("calm") / "job", 1, more=ALL)
    assert bits_of(results) and all(results[0]["moved"])
    assert results[0]["local"] == 0
    assert len(results[0]["losses"]) == STEPS - 1  # A batch was left out.
    return results


@pytest.mark.parametrize("servers", [2, 3])
def test_torch_dense_has_the_same_bits_with_any_number_of_servers(
    tmp_path: Path, calm: Results, servers: int
) -> None:
    assert trained(tmp_path / "job", servers, more=ALL) == calm


@pytest.mark.kill
@pytest.mark.parametrize(
    ("spares", "kills"),
    [
        (
            0,
            [
                (2, "begin", ["server"]),
                (3, "pull", ["server", "worker"]),
                (10, "push", ["servers"]),
                (13, "update", ["worker"]),
                (17, "pull", ["servers", "workers"]),
                (STEPS, "pull done", ["server", "worker"]),
            ],
        ),
        (
            1,
            [
                (0, "assign done", ["server"]),
                (6, "once", ["worker"]),
                (11, "update", ["server", "worker"]),
                (12, "once", ["server"]),
                (18, "pull done", ["worker"]),
                (STEPS, "once", ["worker"]),
            ],
        ),
    ],
)
def test_torch_dense_survives_workers_and_servers(
    tmp_path: Path, calm: Results, spares: int, kills: Kills
) -> None:
    results = trained(tmp_path / "job", 2, kills, killer=spares, more=ALL, spares=spares)
    for rank, result in results.items():  # A successor sees State's parameters first.
        assert {**result, "moved": 0} == {**calm[rank], "moved": 0}


@pytest.mark.kill
def test_torch_dense_survives_the_scheduler(tmp_path: Path, calm: Results) -> None:
    kills: Kills = [
        (0, "assign", ["scheduler", "servers"]),
        (3, "forward", ["scheduler"]),
        (9, "pull", ["scheduler", "servers"]),
        (15, "push done", ["scheduler", "server", "worker"]),
    ]
    results = trained(tmp_path / "job", 2, kills, more=ALL)
    assert bits_of(results) == bits_of(calm)
    assert [r["losses"] for r in results.values()] == [r["losses"] for r in calm.values()]


@pytest.mark.kill
def test_torch_dense_survives_a_kill_from_outside_at_any_instant(
    tmp_path: Path, calm: Results
) -> None:
    job = start(tmp_path / "job", TRAINING, {**ALL, "wait": 0.02}, 2)
    try:
        for step, delay in ((3, 0.013), (8, 0.021), (13, 0.023), (18, 0.03)):
            until = time.monotonic() + LIMIT_S
            path = job.folder / "pid-0"
            while not path.exists() or int(path.read_text().split()[1]) < step:
                assert time.monotonic() < until and job.process.poll() is None, job.logs()
                time.sleep(0.002)
            time.sleep(delay)
            os.kill(job.server(), signal.SIGKILL)
        assert job.end() == calm
        assert job.recoveries()
    finally:
        job.stop()


@pytest.mark.kill
def test_torch_dense_is_saved_and_loaded_by_any_number_of_servers(
    tmp_path: Path, calm: Results
) -> None:
    saved = str(tmp_path / "rows")
    half = STEPS // 2
    trained(tmp_path / "first", 2, more={"steps": half, "save": saved})
    kills: Kills = [(0, "pull", ["server"]), (0, "pull done", ["worker"])]
    more = {"steps": STEPS - half, "offset": half, "load": saved}
    results = trained(tmp_path / "second", 3, kills, more=more)
    assert bits_of(results) == bits_of(calm)


# Epochs of a loader, with a scheduler's step and an evaluation between them, and three kinds of
# parameters: the servers' dense ones, rows of a table, and a layer in DistributedDataParallel.
MIXED = (
    BEGINNING
    + """
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(rank)
body, rows, top = torch.nn.Linear(5, 8), hf.Embedding(40, 8, lr=0.1), DDP(torch.nn.Linear(8, 1))
adam = torch.optim.Adam(body.parameters(), 0.01)
sgd = torch.optim.SGD(top.parameters(), 0.02, momentum=0.9)
hf.ParameterServer(body, adam)
scheduler = torch.optim.lr_scheduler.StepLR(adam, 1, 0.5)
state = hf.State(body, rows, top, adam, sgd, scheduler=scheduler)
data = TensorDataset(torch.randn(48, 5), torch.randint(0, 40, (48,)), torch.randn(48))
loader = DataLoader(data, 8, shuffle=True)
scores = state.vars(all=[])
for epoch in state.epochs(3):
    for x, ids, wanted in state.steps(loader):
        at("begin")
        for optimizer in (adam, sgd):
            optimizer.zero_grad()
        loss = (top(body(x) + rows(ids)).squeeze(1) - wanted).square().mean()
        loss.backward()
        adam.step()
        at("update")
        sgd.step()
    with torch.no_grad():
        print(epoch, body(torch.ones(5)))  # One rank alone may do so.
    scores.all.append(state.once(lambda: float(top(body(torch.ones(5))).detach())))
    at("between")
    scheduler.step()
after = [p.detach() for p in (*body.parameters(), *top.parameters())]
bits = [hashlib.sha256(p.numpy().tobytes()).hexdigest() for p in after]
result = {"n": state.n, "scores": scores.all, "bits": bits, "lr": adam.param_groups[0]["lr"]}
with open(f"{folder}/result-{rank}", "w") as file:
    json.dump(result, file)
"""
)


@pytest.mark.kill
def test_torch_dense_goes_with_epochs_and_tables_and_ddp(tmp_path: Path) -> None:
    calm = torch_servers.trained(MIXED, tmp_path / "calm", 1)
    assert bits_of(calm) and calm[0]["n"] == 18 and len(set(calm[0]["scores"])) == 3
    kills: Kills = [
        (0, "begin", ["server"]),
        (6, "begin", ["worker"]),
        (9, "update", ["server", "worker"]),
        (12, "between", ["server"]),
        (12, "begin", ["servers"]),
    ]
    assert torch_servers.trained(MIXED, tmp_path / "kills", 2, kills) == calm


# Pairs of equal models: one at the servers, and one that torch's optimizer updates, with the mean
# of the ranks' gradients. Both have a scheduler.
COMPARISON = (
    BEGINNING
    + """
import copy
from torch.optim import SGD, Adam, AdamW, Adagrad
makers = {
    "sgd": lambda p: SGD(p, 0.05),
    "sgd decay": lambda p: SGD(p, 0.05, weight_decay=0.1),
    "momentum": lambda p: SGD(p, 0.05, 0.9),
    "nesterov": lambda p: SGD(p, 0.05, 0.8, nesterov=True, weight_decay=0.01),
    "adam": lambda p: Adam(p, 0.01, (0.8, 0.99), weight_decay=0.1),
    "adam decoupled": lambda p: Adam(p, 0.01, weight_decay=0.1, decoupled_weight_decay=True),
    "adamw": lambda p: AdamW(p, 0.01, eps=1e-6),
    "adagrad": lambda p: Adagrad(p, 0.1, initial_accumulator_value=0.5),
}
pairs, kept = {}, {}
for name, make in makers.items():
    net = torch.nn.Sequential(torch.nn.Linear(20, 100), torch.nn.Tanh(), torch.nn.Linear(100, 3))
    twin, began = copy.deepcopy(net), copy.deepcopy(net)
    optimizers = [
        make([{"params": m[0].parameters()}, {"params": m[2].parameters(), "lr": 0.02}])
        for m in (net, twin)
    ]
    hf.ParameterServer(net, optimizers[0], name=name)
    schedulers = [torch.optim.lr_scheduler.StepLR(o, 10, 0.3) for o in optimizers]
    pairs[name] = began, net, twin, optimizers, schedulers
    kept[name] = [[net, twin], optimizers, schedulers]
state = hf.State(kept)
while state.n < 30:
    with state.step():
        x = torch.randn(3, 16, 20, generator=torch.Generator().manual_seed(state.n))[rank]
        wanted = x[:, :3].sin() + x[:, 3:6]
        for began, net, twin, optimizers, schedulers in pairs.values():
            for model, optimizer, scheduler in zip((net, twin), optimizers, schedulers):
                optimizer.zero_grad()
                (model(x) - wanted).square().sum(1).mean().backward()
                for p in twin.parameters() if model is twin else ():
                    p.grad /= dist.get_world_size()
                    dist.all_reduce(p.grad)
                optimizer.step()
                scheduler.step()
def distance(one, other):
    parts = zip(one.parameters(), other.parameters())
    return max((p - q).abs().max().item() for p, q in parts)
with open(f"{folder}/result-{rank}", "w") as file:
    json.dump({
        name: [distance(net, twin), distance(net, began)]
        for name, (began, net, twin, _, _) in pairs.items()
    }, file)
"""
)


@pytest.mark.parametrize("ranks", [1, 3])
def test_torch_dense_is_updated_as_torch_updates_parameters(tmp_path: Path, ranks: int) -> None:
    job = start(tmp_path / "job", COMPARISON, {}, 2, ranks=ranks)
    try:
        found = job.end()
    finally:
        job.stop()
    assert len(found) == ranks and len(found[0]) == 8
    for name, (differs, moved) in found[0].items():
        assert moved > 0.05, (name, moved)
        assert differs < 2e-6, (name, differs)
