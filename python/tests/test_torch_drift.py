"""If replicas differ, rank, tensor and step are named, and the values of most ranks count."""

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
    if config["at"] <= state.n < config.get("until", config["at"] + 1) and rank == 1:
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
    environment = {} if at == 50 else {"HOLDFAST_DIGEST_EVERY": "1"}
    text = DRIFTS.format(change=change)
    results, said = small(tmp_path / "job", text, environment=environment, at=at)
    assert results is None, said
    assert f"rank 1 holds other values of `{name}" in said
    if at in (0, 119):
        assert f"than rank 0 after step {at + 1}" in said
    assert "To go on all the same: HOLDFAST_DRIFT=warn" in said


# Two kills: the processes that take a place know of no repair before.
@pytest.mark.parametrize("kills", [(), ([0, 20], [1, 41])])
def test_torch_a_rank_whose_memory_has_changed_is_given_the_values_of_the_others(
    tmp_path: Path, kills: list[list[int]]
) -> None:
    environment = {"HOLDFAST_DIGEST_EVERY": "1"}
    text = DRIFTS.replace("    train(x)", "    at(state.n)\n    train(x)").format(change=WEIGHT)
    calm, said = small(tmp_path / "calm", text, ranks=3, at=200)
    assert calm is not None and "other values" not in said, said
    results, said = small(tmp_path / "job", text, kills, 3, environment, at=40)
    assert results == calm, said
    sentence = "rank 1 holds other values of `model1.module.2.weight` than rank 0 after step 41. "
    assert said.count(sentence) == 1, said  # By the scheduler: there is no agent.
    assert "It has been given the values that most ranks hold" in said


def test_torch_a_repair_within_state_once_is_not_taken_for_the_function_s_work(
    tmp_path: Path,
) -> None:
    text = """
while state.n < 20:
    with state.step():
        train(batch(state.n))
        if state.n == config["at"] and rank == 1:
            with torch.no_grad():
                net[2].weight[0, 0] += 1e-3
    if state.n == 11:
        state.once(lambda: 1)
leave(state.n)
"""
    text = "state = hf.State(model, optimizer)" + text
    calm, said = small(tmp_path / "calm", text, ranks=3, at=-1)
    assert calm is not None, said
    environment = {"HOLDFAST_DIGEST_EVERY": "1"}
    results, said = small(tmp_path / "job", text, (), 3, environment, at=10)
    assert results == calm and "It has been given the values that most" in said, said


def test_torch_a_program_that_changes_it_again_is_not_repaired_for_ever(tmp_path: Path) -> None:
    environment = {"HOLDFAST_DIGEST_EVERY": "1"}
    text = DRIFTS.format(change=WEIGHT)
    results, said = small(tmp_path / "job", text, (), 3, environment, at=40, until=120)
    assert results is None, said
    assert "after step 42, a step after differences were repaired. Either" in said


def test_torch_drift_may_be_warned_of_only(tmp_path: Path) -> None:
    environment = {"HOLDFAST_DRIFT": "warn"}
    text = DRIFTS.format(change=WEIGHT)
    results, said = small(tmp_path / "job", text, environment=environment, at=0)
    assert results is not None and results[0][0] == 120, said
    assert results[0][-1] != results[1][-1]
    assert said.count("holds other values of `model1.module.2.weight`") in (1, 2)  # Once a rank.
    assert "The job goes on (HOLDFAST_DRIFT=warn)" in said


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
