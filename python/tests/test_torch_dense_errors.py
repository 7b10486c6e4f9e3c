"""hf.ParameterServer refuses by name what it can not do, and init() serves in a server's role."""
# With --ci: jobs with parameter servers that end by an error.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_job import LIMIT_S, needs_torch
from torch_servers import BEGINNING, free_port, start

pytestmark = needs_torch

# What a program may do wrong without others: each is refused, and the job goes on.
MISTAKES = (
    BEGINNING
    + """
import copy
from torch import nn, optim
said = []
def refused(make):
    try:
        make()
    except hf.UserError as error:
        said.append(str(error))
    else:
        said.append("nothing")
def serve(kind, model=None, **options):
    model = model or nn.Linear(3, 2)
    refused(lambda: hf.ParameterServer(model, kind(model.parameters(), 0.1, **options)))
serve(optim.RMSprop)
serve(optim.SGD, momentum=0.9, dampening=0.1)
serve(optim.Adam, amsgrad=True)
serve(optim.Adagrad, lr_decay=0.1)
serve(optim.SGD, nn.Linear(3, 2).double())
serve(optim.SGD, DDP(nn.Linear(3, 2)))
net, other = nn.Linear(3, 2), nn.Linear(3, 2)
made = optim.Adam(net.parameters())
net(torch.ones(3)).sum().backward()
refused(made.step)
refused(lambda: hf.ParameterServer(net, optim.SGD([*net.parameters(), *other.parameters()], 0.1)))
refused(lambda: hf.ParameterServer(net, optim.SGD([net.weight], 0.1)))
scheduled = optim.SGD(net.parameters(), 0.1)
optim.lr_scheduler.StepLR(scheduled, 1)
refused(lambda: hf.ParameterServer(net, scheduled))
loaded = optim.Adam(net.parameters())
loaded.state[net.bias]["step"] = torch.tensor(1.0)
refused(lambda: hf.ParameterServer(net, loaded))
sgd = optim.SGD(net.parameters(), 0.1, momentum=0.9)
hf.ParameterServer(net, sgd)
refused(lambda: hf.ParameterServer(net, optim.SGD(net.parameters(), 0.1)))
refused(lambda: sgd.load_state_dict(optim.SGD(net.parameters(), 0.1).state_dict()))
refused(lambda: sgd.add_param_group({"params": [torch.zeros(1, requires_grad=True)]}))
refused(lambda: hf.State(torch.amp.GradScaler("cpu")))
refused(lambda: hf.State(net))
refused(lambda: DDP(net))
state = hf.State(net, sgd)
refused(lambda: hf.ParameterServer(other, optim.SGD(other.parameters(), 0.1)))
net(torch.ones(3)).sum().backward()
refused(sgd.step)
refused(copy.deepcopy(sgd).step)
def in_step(act):
    def make():
        with state.step():
            sgd.zero_grad()
            net(torch.ones(3)).sum().backward()
            act()
            sgd.step()
    return make
def write():
    with torch.no_grad():
        net.weight.clamp_(-0.1, 0.1)
refused(in_step(sgd.step))
refused(in_step(lambda: sgd.param_groups[0].update(momentum=0.8)))
refused(in_step(lambda: setattr(net.bias, "grad", net.bias.grad.to_sparse())))
before = net.weight.detach().clone()
write()
refused(in_step(lambda: None))
net.load_state_dict({"weight": before, "bias": net.bias.detach().clone()})  # As they were.
in_step(lambda: None)()
moved = (before - net.weight).abs().max().item()
refused(lambda: state.once(sgd.step))
json.dump([*said, moved], open(f"{folder}/result-0", "w"))
"""
)
SAID = [
    "hf.ParameterServer: servers have no optimizer RMSprop; they have SGD, Adam, AdamW, Adagrad",
    "hf.ParameterServer: servers have no dampening=0.1 of SGD",
    "hf.ParameterServer: servers have no amsgrad=True of Adam",
    "hf.ParameterServer: servers have no lr_decay=0.1 of Adagrad",
    "hf.ParameterServer: parameter `weight` is torch.float64 on cpu; servers keep torch.float32",
    "hf.ParameterServer exchanges the gradients of its parameters itself: do not wrap them in ",
    "an optimizer made a step between hf.init() and hf.State(...)",
    "hf.ParameterServer: the SGD has a parameter of shape [2, 3] that the model does not have",
    "hf.ParameterServer: parameter `bias` of the model has gradients, and the optimizer does not",
    "hf.ParameterServer comes before the scheduler of its optimizer",
    "hf.ParameterServer: this Adam has made steps, or has loaded some",
    "hf.ParameterServer: parameter `weight` is in another hf.ParameterServer already",
    "the servers have the state of this SGD: hf.save_tables(folder) and hf.load_tables(folder)",
    "a group of parameters comes into the optimizer before hf.ParameterServer",
    "a GradScaler scales the loss, and hf.ParameterServer would learn from the scaled gradients",
    "State was not given the model and the optimizer of hf.ParameterServer `parameters1`",
    "hf.ParameterServer exchanges the gradients of its parameters itself: do not wrap them in ",
    "hf.ParameterServer has to be made after hf.init() and before hf.State(...)",
    "the optimizer of hf.ParameterServer `parameters1` made a step outside of those of State",
    "this SGD is a copy of one whose parameters hf.ParameterServer left to the servers",
    "the optimizer of hf.ParameterServer `parameters1` made two steps in one step of State",
    "an option of the optimizer of hf.ParameterServer `parameters1` has changed; only lr and ",
    "parameter `bias` has a sparse gradient, which hf.ParameterServer does not take",
    "parameter `weight` was written between two steps, and the servers keep it",
    "the optimizer of hf.ParameterServer `parameters1` made a step outside of those of State",
]


def test_torch_dense_refuses_by_name_what_one_rank_can_see(tmp_path: Path) -> None:
    job = start(tmp_path / "job", MISTAKES, {}, 1, ranks=1)
    try:
        found: Any = job.end()[0]
    finally:
        job.stop()
    moved = found.pop()
    for text, beginning in zip(found, SAID):
        assert text.startswith(beginning), text
    assert len(found) == len(SAID) and moved > 0


# What ends the job. The last rank does something else than the others.
FAILING = """
import json, sys
import torch, torch.distributed as dist, holdfast.torch as hf
case = json.loads(sys.argv[1])
torch.set_num_threads(1)
hf.init()
odd = dist.get_rank() == dist.get_world_size() - 1
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
hf.ParameterServer(net, optimizer)
state = hf.State(net, optimizer)
with state.step():
    if case == "load":
        net.load_state_dict(torch.nn.Linear(3, 2).state_dict())
    if odd and case == "rate":
        optimizer.param_groups[0]["lr"] = 0.5
    loss = net(torch.ones(3)).sum() * (float("nan") if case == "nan" else 1)
    loss.backward()
    if not (odd and case == "none"):
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("case", "ranks", "words"),
    [
        ("load", 1, ["parameter `weight` was written in a step", "before hf.State(...)"]),
        ("rate", 2, ["rank 1 has other learning rates or weight decays for the tables than rank"]),
        ("none", 2, ["rank 0 pushes gradients to table parameters1.1, and rank 1 ends the step"]),
        ("nan", 1, ["rank 0 has a gradient of parameter `weight` that is no finite number"]),
    ],
)
def test_torch_dense_ends_the_job_by_name(
    tmp_path: Path, case: str, ranks: int, words: list[str]
) -> None:
    job = start(tmp_path / "job", FAILING, case, 1, "--max-restarts", "0", ranks=ranks)
    try:
        output, _ = job.process.communicate(timeout=LIMIT_S)
    finally:
        job.stop()
    assert job.process.returncode != 0
    reason = output.rpartition("the job has failed: ")[2]
    assert all(word in reason for word in words), output


# ---- By hand -------------------------------------------------------------------------------------

BY_HAND = """
import sys
import torch, holdfast.torch as hf
torch.set_num_threads(1)
hf.init()
net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
hf.ParameterServer(net, optimizer)
state = hf.State(net, optimizer)
while state.n < 3:
    with state.step():
        optimizer.zero_grad()
        net(torch.ones(3)).sum().backward()
        optimizer.step()
print("ENDED", state.n)
"""


def test_torch_dense_a_python_program_that_is_a_server_by_hand_serves_in_init(
    tmp_path: Path,
) -> None:
    port = str(free_port())
    usual = {
        **os.environ,
        **{"OMP_NUM_THREADS": "1", "MS_SERVER_NUM": "2", "MS_WORKER_NUM": "1"},
        **{"MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": port, "HOLDFAST_TEST_PORT": port},
    }
    plain = "import holdfast; holdfast.init(); print('ENDED')"
    programs = {"MS_SCHED": plain, "MS_SERVER": plain, "MS_PSERVER": BY_HAND, "MS_WORKER": BY_HAND}
    running = {
        role: subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**usual, "MS_ROLE": role, "MS_NODE_ID": role if role != "MS_WORKER" else "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for role, program in programs.items()
    }
    try:
        said = {role: p.communicate(timeout=LIMIT_S)[0] for role, p in running.items()}
    finally:
        for process in running.values():
            process.kill()
    assert [process.returncode for process in running.values()] == [0] * 4, said
    assert [role for role, text in said.items() if "ENDED" in text] == ["MS_WORKER"], said
