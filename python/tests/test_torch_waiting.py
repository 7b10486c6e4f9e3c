"""A process that waits names the rank it waits for, keeps its timeout, and ends by Ctrl-C."""

from __future__ import annotations

from pathlib import Path

from torch_job import Job

BARRIER = """
import datetime, json, os, sys, torch, torch.distributed as dist, holdfast, holdfast.torch as hf
from holdfast.torch import _early
_early._NAMED_AFTER_S = 0.3
hf.init()
rank, folder, said = dist.get_rank(), sys.argv[2], ""
if rank == 0:
    try:
        dist.barrier(timeout=datetime.timedelta(seconds=1))
    except holdfast.WorldError as error:
        said = str(error)
    open(f"{folder}/over", "x").close()
else:
    while not os.path.exists(f"{folder}/over"):
        pass
model = torch.nn.Linear(2, 2)
open(f"{folder}/result-{rank}", "w").write(json.dumps(said))
"""

DROPPED = """
import json, sys, torch, torch.distributed as dist, holdfast.torch as hf
hf.init()
rank, folder, got = dist.get_rank(), sys.argv[2], []
model = torch.nn.Linear(2, 2)
state = hf.State(model, torch.optim.SGD(model.parameters(), lr=0.1))
for x in state.steps([1.0] * 3):
    block = torch.full((1 << 20,), float(state.n))
    if rank == 0:
        dist.isend(block, 1)  # Nobody holds what it returns.
        del block
    dist.barrier()
    if rank == 1:
        dist.recv(block.zero_(), 0)
        got.append(block.unique().tolist())
    dist.barrier()
open(f"{folder}/result-{rank}", "w").write(json.dumps(got))
"""

GLOO = """
import json, sys, torch.distributed as dist, holdfast, holdfast.torch as hf
hf.init()
said = []
gloo = {"backend": "gloo"}
for ranks, how in ((None, gloo), ([0], gloo), (None, {})):
    try:
        said.append(str(dist.new_group(ranks, **how) is not None))
    except holdfast.UserError as error:
        said.append(str(error).partition(",")[0])
open(f"{sys.argv[2]}/result-{dist.get_rank()}", "w").write(json.dumps(said))
"""


def results(tmp_path: Path, text: str) -> tuple[list[object], str]:
    """Run a program without a fault; return what its ranks wrote, and the logs."""
    program = tmp_path / "program.py"
    program.write_text(text)
    job = Job(tmp_path / "job", {}, program=program, spares=0)
    try:
        return list(job.end().values()), job.logs()
    finally:
        job.stop()


def test_torch_a_barrier_before_state_names_who_is_awaited_and_keeps_its_timeout(
    tmp_path: Path,
) -> None:
    said, logs = results(tmp_path, BARRIER)
    assert said == ["rank 1 did not come to a barrier within the timeout given", ""]
    assert "this process waits at a barrier for rank 1, which has not come there yet" in logs


def test_torch_a_send_that_nobody_holds_arrives_and_blocks_nobody(tmp_path: Path) -> None:
    got, _ = results(tmp_path, DROPPED)
    assert got == [[], [[0.0], [1.0], [2.0]]]


def test_torch_a_group_of_gloo_is_refused_and_not_awaited(tmp_path: Path) -> None:
    said, _ = results(tmp_path, GLOO)
    refused = "a group with another backend than Holdfast's"
    assert said == [[refused, "True", "True"]] * 2
