"""A script written for torchrun, unchanged, under `holdfast run`."""
# With --ci: jobs that start again as a whole.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_job import needs_torch

pytestmark = needs_torch

# It saves checkpoints itself, as in PyTorch's tutorials. Rank 1 is killed once.
SCRIPT = """
import os, signal
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("{backend}")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(torch.nn.Linear(10, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
first = 0
if os.path.exists("snapshot"):
    snapshot = torch.load("snapshot")
    model.load_state_dict(snapshot["model"])
    optimizer.load_state_dict(snapshot["optimizer"])
    first = snapshot["step"]
for step in range(first, 12):
    if step == 8 and rank == 1 and first == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    x = torch.randn(4, 10, generator=torch.Generator().manual_seed(10 * step + rank))
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    dist.barrier()
    if step == 4 and rank == 0:
        torch.save(
            {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 5}}, "new"
        )
        os.replace("new", "snapshot")
print("from", first, "restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.destroy_process_group()
"""


def run(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "--nproc-per-node=2", "train.py"],
        cwd=folder,
        env=dict(os.environ, TORCH_CPP_LOG_LEVEL="ERROR"),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("gloo", "all 2 processes are started again, as torchrun does: restart 1 of 3"),
        ("holdfast", "holdfast: the job has ended in good order"),
    ],
)
def test_torch_a_plain_script_starts_again_from_its_own_checkpoint(
    tmp_path: Path, backend: str, said: str
) -> None:
    done = run(tmp_path, SCRIPT.format(backend=backend))
    for rank in (0, 1):
        assert f"[default{rank}]:from 5 restarts 1" in done.stdout, done.stdout + done.stderr
    assert said in done.stderr


# Rank 1 is lost after rank 0 has ended and its process is gone.
LATE = """
import os, signal, time
import torch, torch.distributed as dist

dist.init_process_group("holdfast")
rank, count = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
pids = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
dist.all_gather(pids, torch.tensor([os.getpid()]))
if count == "0" and rank == 1:
    while os.path.exists(f"/proc/{int(pids[0])}"):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
dist.destroy_process_group()
print("ends after restarts", count)
"""


def test_torch_a_rank_lost_after_another_has_ended_starts_all_again(tmp_path: Path) -> None:
    done = run(tmp_path, LATE)
    for rank in (0, 1):
        assert f"[default{rank}]:ends after restarts 1" in done.stdout, done.stdout + done.stderr
    assert "rank 1 was lost and nothing is kept" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
