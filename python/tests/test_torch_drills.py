"""Faults that `holdfast inject` orders come to programs of PyTorch, and cost no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch_job import needs_torch
from torch_small import small

pytestmark = needs_torch

DRILLED = """
import subprocess
layers = torch.nn.Linear(4, 2048), torch.nn.BatchNorm1d(2048), torch.nn.Linear(2048, 2)
model = DDP(torch.nn.Sequential(*layers))  # Of several pages.
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)  # Else it ends as NaN.
state = hf.State(model, optimizer)
def order():
    try:
        open(f"{folder}/ordered", "x").close()
    except FileExistsError:  # The step is made again.
        return
    job = os.environ.get("HOLDFAST_JOB") or "port-" + os.environ["MS_SCHED_PORT"]
    words = ["inject", config["kind"], "--job", job, "--rank", "1", "--phase", config["phase"]]
    words += ["--for", "0.01"] if config["kind"] == "slow" else []
    subprocess.run([sys.executable, "-m", "holdfast", *words], check=True)
for x in state.steps(data * 10):
    if rank == 0 and state.n == 5 and config["kind"]:
        order()
    train(x)
assert all(p.isfinite().all() for p in model.parameters())  # Else bits would say nothing.
leave(state.n)
"""
SAID = {
    "kill": "drill: this process is killed",
    "page": "memory errors have taken 1 page",
    "flip": "in the program's memory",
    "slow": "is to wait for 0.010 s in each step",
}
GIVEN = "It has been given the values that most ranks hold"


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("calm") / "job"
    results, said = small(folder, DRILLED, (), 3, kind="", phase="")
    assert results is not None, said
    return results


KILLS = ("compute", "sum", "stage", "commit", "update", "between")


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        *(("kill", phase) for phase in KILLS),
        *(("page", phase) for phase in ("compute", "commit", "update")),
        ("flip", "stage"),
        ("slow", "compute"),
    ],
)
def test_torch_a_fault_on_order_costs_no_bit(
    tmp_path: Path, calm: list[Any], kind: str, phase: str
) -> None:
    more = {"HOLDFAST_ALLOW_INJECT": "1", "HOLDFAST_DIGEST_EVERY": "1"}
    kills = [[1]] if kind == "kill" else []  # Who starts the processes expects so many deaths.
    drilled, said = small(tmp_path / "job", DRILLED, kills, 3, more, kind=kind, phase=phase)
    assert drilled == calm, said
    assert SAID[kind] in said, said
    assert (GIVEN in said) == (kind == "flip"), said


def test_torch_two_ranks_name_a_bit_that_flips_and_end(tmp_path: Path) -> None:
    more = {"HOLDFAST_ALLOW_INJECT": "1", "HOLDFAST_DIGEST_EVERY": "1"}
    drilled, said = small(tmp_path / "job", DRILLED, (), 2, more, kind="flip", phase="stage")
    assert drilled is None and SAID["flip"] in said, said
    assert "rank 1 holds other values of `" in said, said
