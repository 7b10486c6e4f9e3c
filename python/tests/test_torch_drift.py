"""If replicas differ between ranks, the rank, the tensor and the step are named."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch_job import needs_torch
from torch_small import small, survives

pytestmark = needs_torch

DRIFTS = """
state = hf.State(model, optimizer)
for x in state.steps(data * 40):
    train(x)
    if state.n == config["at"] and rank == 1:
        with torch.no_grad():
            {change}
leave(state.n)
"""
WEIGHT = "net[2].weight[0, 0] += 1e-3"
CLIPS = "torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3); optimizer.step()"
MOMENTUM = "optimizer.state[net[0].weight]['momentum_buffer'].mul_(0.5)"


@pytest.mark.parametrize(
    ("change", "at", "name"),
    [
        (WEIGHT, 0, "model1.module.2.weight"),
        (CLIPS, 119, "model1.module.0.weight"),  # In the last step, after which no step is made.
        (MOMENTUM, 119, "sgd1.state[0].momentum_buffer"),
        (WEIGHT, 50, "model1.module."),
    ],
    ids=["in the first step", "clipped in the last", "an optimizer's", "in between"],
)
def test_torch_a_job_whose_ranks_drift_apart_ends_and_says_where(
    tmp_path: Path, change: str, at: int, name: str
) -> None:
    results, said = small(tmp_path / "job", DRIFTS.format(change=change), at=at)
    assert results is None, said
    assert f"rank 1 holds other values of `{name}" in said
    if at in (0, 119):
        assert f"than rank 0 in step {at + 1}; they are to be the same on all ranks" in said
    assert "To go on all the same: HOLDFAST_DRIFT=warn" in said


def test_torch_drift_may_be_warned_of_only(tmp_path: Path) -> None:
    environment = {"HOLDFAST_DRIFT": "warn"}
    text = DRIFTS.format(change=WEIGHT)
    results, said = small(tmp_path / "job", text, environment=environment, at=0)
    assert results is not None and results[0][0] == 120, said
    assert results[0][-1] != results[1][-1]
    assert said.count("holds other values of `model1.module.2.weight`") in (1, 2)  # Once a rank.
    assert "It goes on (HOLDFAST_DRIFT=warn)" in said


def test_torch_what_ddp_leaves_to_each_rank_is_no_drift(tmp_path: Path) -> None:
    # Batch norm's statistics between two broadcasts, and what DDP was told to ignore.
    text = """
own = torch.nn.Linear(4, 4)
net.append(own)
net[3].forward = lambda x: x
DDP._set_params_and_buffers_to_ignore_for_model(net, ["3.weight", "3.bias"])
model = DDP(net)
optimizer = torch.optim.SGD(net[:3].parameters(), lr=0.1, momentum=0.9)
state = hf.State(model, optimizer)
for x in state.steps(data, epochs=2):
    train(x)
    with torch.no_grad():
        own.weight.fill_(rank)
json.dump([state.n], open(f"{folder}/result-{rank}", "w"))
"""
    results, said = small(tmp_path / "job", text)
    assert results == [[6], [6]], said
    assert "holds other values" not in said


def test_torch_replicas_of_some_ranks_only_may_differ_from_the_others(tmp_path: Path) -> None:
    text = """
pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
expert = torch.nn.Linear(2, 2)
with torch.no_grad():
    expert.weight.fill_(rank // 2)
expert = DDP(expert, process_group=pairs[rank // 2])
optimizer = torch.optim.SGD([*model.parameters(), *expert.parameters()], lr=0.1, momentum=0.9)
state = hf.State(model, expert, optimizer)
for x in state.steps(data, epochs=2):
    at(state.n)
    optimizer.zero_grad()
    (expert(model(x)) ** 2).mean().backward()
    optimizer.step()
leave(state.n, expert.module.weight.tolist())
"""
    results, said = survives(tmp_path, text, [[1, 2], [2, 4]], ranks=4)
    weights = [result[1] for result in results]
    assert weights[0] == weights[1] != weights[2] == weights[3], said
