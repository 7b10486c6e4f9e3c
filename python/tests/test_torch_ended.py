"""A rank is lost after the last step, when another has ended already: no group can be formed."""
# With --ci: ranks that are lost after others have ended.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_job import needs_torch

pytestmark = [pytest.mark.kill, needs_torch]

BEGIN = """
import os, pathlib, signal, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
import holdfast.torch as hf

hf.init()
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
state = hf.State(model, optimizer)
"""

# Rank 1 is killed once, as soon as rank 0 has ended.
SCRIPT = """
for x in state.steps([torch.ones(3, 4)] * 4, epochs=2):
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()
    {last}
if rank == 0:
    pathlib.Path("pid.new").write_text(str(os.getpid()))
    os.replace("pid.new", "pid")
elif not os.path.exists("killed"):
    while not os.path.exists("pid") or os.path.exists(f"/proc/{open('pid').read()}"):
        time.sleep(0.01)
    pathlib.Path("killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
{tail}
dist.barrier()
parts = [tensor.numpy().tobytes() for tensor in model.state_dict().values()]
pathlib.Path(f"saved-{rank}").write_bytes(b"".join(parts))
dist.destroy_process_group()
"""


def run(folder: Path, tail: str, last: str = "") -> subprocess.CompletedProcess[str]:
    # Only rank 1 calls barrier(), so rank 0 ends without it.
    script = SCRIPT.replace("dist.barrier()", "if rank == 1: dist.barrier()")
    return start(folder, script.replace("{tail}", tail).replace("{last}", last))


def start(folder: Path, text: str, max_restarts: int = 1) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(BEGIN + text)
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast",
            "run",
            "--nproc-per-node=2",
            f"--max-restarts={max_restarts}",
            "train.py",
        ],
        cwd=folder,
        env=dict(os.environ, TORCH_CPP_LOG_LEVEL="ERROR"),
        capture_output=True,
        text=True,
        timeout=240,  # Less than HOLDFAST_REPLACEMENT_TIMEOUT: it must not wait for a group.
    )


@pytest.mark.parametrize("last", ["", "if state.n == 2: state.stop()"])
def test_torch_what_needs_no_other_rank_runs_to_its_end(tmp_path: Path, last: str) -> None:
    done = run(tmp_path, "", last)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "saved-0").read_bytes() == (tmp_path / "saved-1").read_bytes()


@pytest.mark.parametrize(
    "tail",
    [
        "if rank == 1: dist.all_reduce(torch.ones(2))",
        "if rank == 1:\n    with state.step(): optimizer.step()",
    ],
    ids=["all_reduce", "step"],
)
def test_torch_what_needs_the_rank_that_has_ended_is_told_at_once(
    tmp_path: Path, tail: str
) -> None:
    done = run(tmp_path, tail)
    assert done.returncode != 0
    assert "rank 0 has ended its training: rank 1 can exchange nothing" in done.stderr
    assert "let all meet before any ends: `dist.barrier()`" in done.stderr


# Rank 1 is killed once, in the step that ends the loop.
BROKEN = """
for x in state.steps([torch.ones(3, 4)] * 4, epochs=2):
    optimizer.zero_grad()
    loss = model(x).square().sum()
    if rank == 0 and state.n == 2:
        pathlib.Path("begun").touch()  # The step: else it is not void there.
    if rank == 1 and state.n == 2 and KILLED and not os.path.exists("killed"):
        while not os.path.exists("begun"):
            time.sleep(0.01)
        pathlib.Path("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    loss.backward()
    optimizer.step()
    if state.n == 2:
        state.stop()
{tail}
parts = [tensor.numpy().tobytes() for tensor in model.state_dict().values()]
pathlib.Path(f"saved-{rank}").write_bytes(b"".join(parts) + str(state.n).encode())
"""


@pytest.mark.parametrize("tail", ["dist.barrier()", ""])
def test_torch_a_step_that_ends_its_loop_and_was_void_is_made_again(
    tmp_path: Path, tail: str
) -> None:
    found = []
    for killed in ("False", "True"):
        folder = tmp_path / killed
        folder.mkdir()
        text = BROKEN.replace("{tail}", tail).replace("KILLED", killed)
        done = start(folder, text, max_restarts=3)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append([(folder / f"saved-{rank}").read_bytes() for rank in (0, 1)])
    assert found[0] == found[1] and found[0][0].endswith(b"3")
    assert "step 3 was void, it is made again" in done.stdout + done.stderr


def test_torch_who_ends_well_before_its_state_is_waited_for_by_nobody(tmp_path: Path) -> None:
    head, _, _ = BEGIN.partition("torch.manual_seed")
    (tmp_path / "train.py").write_text(f"{head}if rank == 0:\n    dist.barrier()\n")
    command = (sys.executable, "-m", "holdfast", "run", "--nproc-per-node=2", "--max-restarts=1")
    done = subprocess.run(
        [*command, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode != 0
    assert "rank 1 has ended its program without a State, and without a barrier" in (
        done.stdout + done.stderr
    )


LEAVES = """
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
for x in state.steps([torch.ones(3, 4)] * 100):
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()
    if rank == 0 and state.n == 2:
        os.kill(os.getppid(), signal.SIGTERM)  # The launcher, which sends it to all.
        while not asked:
            time.sleep(0.01)
    leaves = torch.tensor([float(bool(asked))])
    dist.all_reduce(leaves)
    if leaves.item():
        state.stop()
pathlib.Path(f"saved-{rank}").write_text(str(state.n))
"""


def test_torch_a_flag_that_sigterm_sets_is_looked_at_and_the_state_saved(tmp_path: Path) -> None:
    done = start(tmp_path, LEAVES)
    assert done.returncode == 143, done.stdout + done.stderr
    assert [(tmp_path / f"saved-{rank}").read_text() for rank in (0, 1)] == ["3", "3"]
