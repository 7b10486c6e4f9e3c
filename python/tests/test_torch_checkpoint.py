"""torch.distributed.checkpoint works on the backend: sharded, whole, and in the background."""
# With --ci: checkpoints of jobs of two sizes.

from __future__ import annotations

from pathlib import Path

import pytest
from torch_job import HERE, needs_fully_shard, needs_torch, run

pytestmark = [needs_torch, needs_fully_shard]


def test_torch_checkpoints_are_saved_and_loaded(tmp_path: Path) -> None:
    results = run(tmp_path / "job", {}, program=HERE / "torch_checkpoint.py")
    assert {rank: r["same"] for rank, r in results.items()} == {0: [True, True], 1: [True, True]}
    assert {rank: r["whole"] for rank, r in results.items()} == {0: 4, 1: 0}  # As on Gloo.


RESUMES = """
import json, os, sys, torch, torch.distributed as dist, holdfast.torch as hf
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
config, folder = json.loads(sys.argv[1]), sys.argv[2]
hf.init()
torch.set_num_threads(1)
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
def all_of_it():
    parameters, moments = get_state_dict(model, optimizer)
    return {"model": parameters, "optimizer": moments}
def save():
    dcp.save(all_of_it(), checkpoint_id=config["to"])
state = hf.State(model, optimizer)
if state.n == 0 and os.path.exists(config["from"] + "/.metadata"):
    loaded = all_of_it()
    dcp.load(loaded, checkpoint_id=config["from"])
    set_state_dict(model, optimizer, model_state_dict=loaded["model"],
                   optim_state_dict=loaded["optimizer"])
rank = dist.get_rank()
data = torch.utils.data.TensorDataset(torch.randn(40, 8), torch.randn(40, 1))
for epoch in state.epochs(2):
    for x, y in state.steps(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)):
        killed = f"{folder}/killed-{state.n}"
        if [state.n, rank] in config["kills"] and not os.path.exists(killed):
            open(killed, "x").close()
            os.kill(os.getpid(), 9)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    state.once(save)
bits = [p.to_local().tolist() for p in model.parameters()]
open(f"{folder}/result-{rank}", "w").write(json.dumps({"n": state.n, "bits": bits}))
dist.barrier()
"""


@pytest.mark.kill
def test_torch_a_program_that_loads_what_is_there_survives_kills(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(RESUMES)
    results = []
    for kind, kills in (("calm", []), ("killed", [[3, 1], [7, 0], [8, 1]])):
        first, second = str(tmp_path / kind / "a"), str(tmp_path / kind / "b")
        begun = {"from": first, "to": first, "kills": kills}  # Only successors find it there.
        results.append(run(tmp_path / kind, begun, program=program))
        goes_on = {"from": first, "to": second, "kills": kills[:2]}
        spares = len(kills) // 3
        results.append(run(tmp_path / f"{kind}2", goes_on, program=program, spares=spares))
    assert results[:2] == results[2:]
    assert results[0] != results[1] and results[0][0]["n"] == 10
    names = ["killed-3", "killed-7", "killed-8"]
    assert sorted(path.name for path in tmp_path.glob("killed/killed-*")) == names
    assert sorted(path.name for path in tmp_path.glob("killed2/killed-*")) == names[:2]
