"""Losses that are NaN or too great: their step does not count, and is made again or left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_job import needs_torch
from torch_small import small

pytestmark = needs_torch

# In step 8 rank 1's loss is bad: once, always, or never; "without": no rank does anything in it.
CHECKED = """
state = hf.State(model, optimizer)
def is_bad():
    if rank != 1 or state.n != 7:
        return False
    if config["how"] == "always":
        return True
    try:
        open(f"{folder}/was-bad-{config['how']}", "x").close()
    except FileExistsError:
        return False
    return config["how"] == "once"
for x in state.steps(data * 10):
    at(state.n)
    if config["how"] == "without" and state.n == 7:
        continue
    optimizer.zero_grad()
    loss = (model(x) ** 2).mean()
    loss.backward()
    state.check(loss * config["bad"] if is_bad() else loss, config["at_most"], config["then"])
    optimizer.step()
    if rank == 0 and config["how"] == "always" and state.n == 7:
        at("after", state.n)
leave(state.n)
"""


def run(folder: Path, how: str, then: str = "stop", **more: Any) -> tuple[Any, str]:
    config = {"at_most": 1e9, "bad": float("nan"), **more}
    kills = config.pop("kills", ())
    return small(folder, CHECKED, kills, how=how, then=then, **config)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e12])
def test_torch_a_loss_that_is_bad_once_costs_no_bit(tmp_path: Path, bad: float) -> None:
    calm, said = run(tmp_path / "calm", "never")
    assert calm is not None and "is made again" not in said, said
    results, said = run(tmp_path / "job", "once", bad=bad)
    assert results == calm, said
    assert said.count("on rank 1: it is made again") == 1, said


@pytest.mark.parametrize("kills", [[], [[0, 7]], [[0, "after", 7]], [[1, 7]]])
def test_torch_a_batch_whose_loss_is_bad_again_is_left_out(tmp_path: Path, kills: Any) -> None:
    without, said = run(tmp_path / "without", "without")
    assert without is not None, said
    results, said = run(tmp_path / "job", "always", "skip", kills=kills)
    assert results == without, said
    assert "the loss of step 8 is nan on rank 1, again: its batch is left out" in said, said


def test_torch_a_loss_that_is_bad_again_ends_the_job_by_name(tmp_path: Path) -> None:
    results, said = run(tmp_path / "job", "always", "stop")
    assert results is None
    assert "the loss of step 8 is nan on rank 1, and a loss was bad before" in said, said


def test_torch_a_loss_is_checked_in_a_step_only(tmp_path: Path) -> None:
    text = """
import holdfast
state = hf.State(model, optimizer)
try:
    state.check(1.0)
except holdfast.UserError as error:
    assert "belongs into a step" in str(error)
    json.dump(0, open(f"{folder}/result-{rank}", "w"))
"""
    results, said = small(tmp_path / "job", text)
    assert results is not None, said
