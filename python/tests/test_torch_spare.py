"""A ready spare takes the place of a lost rank, for every kind of model; or may not, and why."""
# With --ci: it ends a spare and a rank of every kind of model.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_job import Job, needs_torch, run
from torch_warm import calm

pytestmark = [pytest.mark.kill, needs_torch]


def with_spare(folder: Path, config: dict[str, Any], kills: list[list[Any]]) -> Any:
    """Run a job that waits in its second step until its spare is ready; then make the kills."""
    assert all(step > 2 for _, step, _ in kills)
    job = Job(folder, {**config, "kills": kills, "hold": 2}, spares=1)
    try:
        job.until(lambda trace: any(e["event"] == "waiting" for e in trace), "a spare")
        (folder / "go").touch()
        results = job.end()
    finally:
        job.stop()
    trace = job.trace()
    promoted = [e["pid"] for e in trace if e["event"] == "promoted"]
    waiting = {e["pid"]: e["t_ns"] for e in trace if e["event"] == "waiting"}
    fault = next(e["t_ns"] for e in trace if e["event"] == "fault")
    assert waiting[promoted[0]] < fault  # The spare was ready, and got the first place.
    assert len(list(folder.glob("killed-*"))) == len(kills)
    assert "waits for its rank" not in job.logs()  # The program reads no rank.
    return results


@pytest.mark.parametrize("kind", ["fsdp", "plain"])
def test_torch_a_ready_spare_goes_on_with_the_same_bits(tmp_path: Path, kind: str) -> None:
    config = {"kind": kind, "own_loop": kind == "plain"}
    expected = calm(tmp_path / "calm", config)
    assert sorted(expected) == [0, 1]
    kills = [[1, 5, "forward" if kind == "plain" else "collective"], [0, 9, "update"]]
    assert with_spare(tmp_path / "job", config, kills) == expected


def test_torch_a_gradient_scaler_that_skips_updates_keeps_its_bits(tmp_path: Path) -> None:
    config = {"scaler": True, "overflow": [5, 6, 12]}
    expected = calm(tmp_path / "calm", config)
    # Halved three times, doubled after three good steps each. Kills do not change that.
    assert expected[0]["scale"] != 1024.0
    kills = [[0, 5, "update"], [1, 7, "collective"]]
    assert with_spare(tmp_path / "job", config, kills) == expected


def test_torch_a_program_that_has_changed_between_restarts_is_told_so(tmp_path: Path) -> None:
    config = {"kills": [[1, 4, "forward"]], "regrown": 96}
    job = Job(tmp_path / "job", config, options=("--max-restarts=1",))
    try:
        assert job.end(code=None) == {}
        assert job.process.returncode != 0
    finally:
        job.stop()
    said = job.logs()
    assert "UserError: the program has changed between restarts: `module.first.weight` is " in said
    assert "[96, 16], in the state it is torch.float32 [64, 16]; a job goes on with the" in said


def test_torch_a_spare_that_waits_has_made_a_backward_pass(tmp_path: Path) -> None:
    # Only a backward pass gives buckets their memory, so memory shows that the spare has made one.
    # It is bound to a rank, since the program asks for its rank before State.
    job = Job(tmp_path / "job", {"width": 128, "hold": 1}, spares="all")
    try:
        trace = job.until(
            lambda trace: trace if any(e["event"] == "waiting" for e in trace) else None, "a spare"
        )
        spare = next(e["pid"] for e in trace if e["event"] == "waiting")
        maps = Path(f"/proc/{spare}/maps").read_text()
    finally:
        job.stop()
    assert "/dev/shm/torch_" in maps, maps


PROGRAM = """
import os, json, sys, time, torch, holdfast.torch as hf
rank = int(os.environ.get("LOCAL_RANK", "-1"))
assert os.getenv("RANK") == str(rank) == os.environ["ROLE_RANK"]
folder = sys.argv[2]
open(f"{folder}/began-{os.getpid()}", "w").close()
hf.init()
torch.manual_seed(3)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = hf.State(model, optimizer)
for x in state.steps([torch.full((1, 2), i + rank + 1.0) for i in range(6)]):
    if state.n == 3 and rank == 1 and json.loads(sys.argv[1])["kills"]:
        while not os.path.exists(f"{folder}/go"): time.sleep(0.01)  # A spare starts idle.
        if int(os.environ["HOLDFAST_ATTEMPT"]) == 1: os.kill(os.getpid(), 9)
    optimizer.zero_grad()
    (model(x) ** 2).sum().backward()
    optimizer.step()
open(f"{folder}/result-{rank}", "w").write(json.dumps([state.n, model.module.weight.tolist()]))
"""


def test_torch_a_spare_waits_where_its_program_reads_its_rank(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    expected = run(tmp_path / "calm", {"kills": []}, program=program)
    folder = tmp_path / "job"
    job = Job(folder, {"kills": [1]}, spares=1, program=program, options=("--max-restarts", "1"))
    try:
        job.until(
            lambda trace: (
                any(e["event"] == "waiting" for e in trace)
                and len(list(folder.glob("began-*"))) == 2
            ),
            "a spare that waits, and two ranks that have begun",
        )
        (folder / "go").touch()
        assert job.end() == expected
        assert len(list(folder.glob("began-*"))) == 3
    finally:
        job.stop()
    assert any(e["event"] == "promoted" for e in job.trace())
    assert f"this spare waits for its rank at {program}:3, which reads LOCAL_RANK" in job.logs()


EXCHANGES = """
import json, os, sys, time, torch, torch.distributed as dist, holdfast.torch as hf
hf.init()
folder, what = sys.argv[2], json.loads(sys.argv[1])["what"]
dist.barrier()
seed = torch.tensor([time.time_ns()])  # Another one in each process.
dist.broadcast(seed, 0)
rank = dist.get_rank()
if what == "late" and os.path.exists(f"{folder}/killed-{rank}"):
    dist.all_reduce(torch.ones(3))  # As for a checkpoint that was not there before.
total = torch.ones(3) * (seed % 5)
dist.all_reduce(total)
large = torch.full(((20 << 20) // 8,), time.time_ns())  # Another one in each process.
dist.broadcast(large, 1)
assert large.unique().numel() == 1
for parameter in torch.nn.Linear(2, 2).parameters():
    dist.broadcast(parameter, 0)
got = torch.zeros(1)
for work in (dist.irecv(got, 1 - rank), dist.isend(torch.tensor([rank + 7.0]), 1 - rank)):
    work.wait()
assert got == 8.0 - rank
if what == "early" and not os.path.exists(f"{folder}/killed-{rank}"):
    open(f"{folder}/killed-{rank}", "x").close()
    os.kill(os.getpid(), 9)
name = [f"run {time.time_ns()}", "x" * 70000] if rank == 0 else [None, None]
dist.broadcast_object_list(name, src=0)
everyone = [None] * dist.get_world_size()
dist.all_gather_object(everyone, (rank, int(seed)))
mine = [None]
dist.scatter_object_list(mine, [10, 11] if rank == 0 else None, src=0)
pair = dist.new_group([0, 1])
block = torch.tensor([float(rank)])
if rank == 0:
    dist.send(block, 1)
else:
    dist.recv(block, 0)
dist.all_to_all_single(out := torch.zeros(2), torch.tensor([rank + 0.5, rank + 0.25]), group=pair)
if what == "more" and os.path.exists(f"{folder}/killed-{rank}"):
    dist.barrier()
    dist.broadcast_object_list([None], src=0)
model = torch.nn.Linear(2, 2)
state = hf.State(model, torch.optim.SGD(model.parameters(), lr=0.1))
for x in state.steps([1.0] * 6):
    if (state.n, rank) in ((2, 0), (4, 1)) and not os.path.exists(f"{folder}/killed-{rank}"):
        open(f"{folder}/killed-{rank}", "x").close()
        os.kill(os.getpid(), 9)
    dist.barrier()
told = [int(seed), total.tolist(), everyone, int(large[-1]), mine, block.tolist(), out.tolist()]
told = told + ([] if rank == 0 else name)  # Rank 0 has what it made itself.
open(f"{folder}/result-{rank}", "w").write(json.dumps(told))
"""


@pytest.mark.parametrize("spares", [0, 1])
def test_torch_a_replacement_is_told_what_was_exchanged_before_its_state(
    tmp_path: Path, spares: int
) -> None:
    program = tmp_path / "program.py"
    program.write_text(EXCHANGES)
    job = Job(tmp_path / "job", {"what": "early"}, program=program, spares=spares)
    try:
        first, second = job.end().values()
    finally:
        job.stop()
    assert [(tmp_path / f"job/killed-{rank}").exists() for rank in (0, 1)] == [True, True]
    seed, total, everyone, large, *_ = first
    assert second[:4] == [seed, total, everyone, large] and everyone == [[0, seed], [1, seed]]
    assert total == [2.0 * (seed % 5)] * 3
    assert (first[4:], second[4:7]) == ([[10], [0.0], [0.5, 1.5]], [[11], [0.0], [0.25, 1.25]])
    assert second[7].startswith("run ") and second[8] == "x" * 70000


WITHOUT_NUMPY = """
import sys
sys.modules["numpy"] = None  # PyTorch's wheel does not bring it.
import json, os, torch, torch.distributed as dist, holdfast.torch as hf
hf.init()
rank, folder = dist.get_rank(), sys.argv[2]
total = torch.ones(3) * (rank + 1)
dist.all_reduce(total)
model = torch.nn.Linear(2, 2)
state = hf.State(model, torch.optim.SGD(model.parameters(), lr=0.1))
run = state.vars(seen=torch.zeros(2))
for x in state.steps([1.0] * 6):
    if state.n == 3 and rank == 1 and not os.path.exists(f"{folder}/killed-{rank}"):
        open(f"{folder}/killed-{rank}", "x").close()
        os.kill(os.getpid(), 9)
    run.seen = run.seen + 1
    dist.barrier()
open(f"{folder}/result-{rank}", "w").write(json.dumps([total.tolist(), run.seen.tolist()]))
"""


def test_torch_needs_no_numpy(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(WITHOUT_NUMPY)
    job = Job(tmp_path / "job", {}, program=program, spares=1)
    try:
        assert list(job.end().values()) == [[[3.0] * 3, [6.0] * 2]] * 2
    finally:
        job.stop()
    assert "Numpy" not in job.logs()


AFTER_STATE = """
import json, os, sys, time, torch, torch.distributed as dist, holdfast.torch as hf
hf.init()
rank, folder = dist.get_rank(), sys.argv[2]
model = torch.nn.Linear(2, 2)
state = hf.State(model, torch.optim.SGD(model.parameters(), lr=0.1))
name = [f"run {time.time_ns()}"] if rank == 0 else [None]
dist.broadcast_object_list(name, src=0)
for x in state.steps([1.0] * 6):
    if state.n == 4 and rank == 1 and not os.path.exists(f"{folder}/killed-{rank}"):
        open(f"{folder}/killed-{rank}", "x").close()
        os.kill(os.getpid(), 9)
    dist.barrier()
"""


@pytest.mark.parametrize(
    ("text", "what", "sentence"),
    [
        # A successor makes one exchange more than its predecessor: at the end, or in between.
        (EXCHANGES, "more", "this process exchanges other things than the one it replaces"),
        (EXCHANGES, "late", "this process exchanges other things than the one it replaces"),
        (AFTER_STATE, "", "exchange them before hf.State(...), or by state.once(f)"),
    ],
    ids=["more", "late", "after State"],
)
def test_torch_what_a_replacement_can_not_be_told_is_said(
    tmp_path: Path, text: str, what: str, sentence: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    job = Job(tmp_path / "job", {"what": what}, program=program, options=("--max-restarts=1",))
    try:
        assert job.end(code=None) == {}
        assert job.process.returncode != 0
    finally:
        job.stop()
    assert sentence in job.logs()


def test_torch_what_a_spare_starts_has_no_rank_to_wait_for() -> None:
    program = "import os, holdfast.torch; print(os.environ.get('RANK', 'none'))"
    words = {"MS_ROLE": "MS_WORKER", "MS_WORKER_NUM": "2", "HOLDFAST_SPARE_FD": "3"}
    others = {name: word for name, word in os.environ.items() if name != "RANK"}
    done = subprocess.run(  # Its descriptor 3 is closed, or is no pipe of ours.
        [sys.executable, "-c", program], env={**others, **words}, capture_output=True, timeout=120
    )
    assert done.stdout == b"none\n", done.stderr
