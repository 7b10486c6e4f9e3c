"""Which of DDP's buckets are moved into registered memory, and which are not."""
# With --ci: DDP's buckets in jobs of many shapes.

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PROGRAM = """
import os, torch, torch.distributed as dist, holdfast.torch as hf
from torch.nn.parallel import DistributedDataParallel
from holdfast.torch import _buckets, _engine
from holdfast.torch._group import HoldfastGroup
torch.set_num_threads(1)
hf.init()
model = DistributedDataParallel(torch.nn.Linear(300, 300), gradient_as_bucket_view=VIEW)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
PATCH
state = hf.State(model, optimizer)
summed = {}
usual = HoldfastGroup._reduce
def watched(self, tensor, op):
    summed[tensor.numel()] = tensor.data_ptr()
    usual(self, tensor, op)
HoldfastGroup._reduce = watched
mine = torch.full((300 * 301,), float(dist.get_rank()))
for n in range(3):
    with state.step():
        dist.all_reduce(mine)  # As large as the bucket, and the user's.
        assert not mine.is_shared() and summed.pop(300 * 301) == mine.data_ptr()
        optimizer.zero_grad()
        model(torch.ones(2, 300)).sum().backward()
        assert model.module.bias.grad.eq(2).all()
        optimizer.step()
moved = _engine.engine.buckets.moved
"""


def job(tmp_path: Path, end: str, view: bool = True, patch: str = "") -> str:
    """Run PROGRAM and `end` on two ranks; return the output of rank 0."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("VIEW", str(view)).replace("PATCH", patch) + end)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "holdfast", "run", "--nproc-per-node", "2"),
            *("--max-restarts", "0"),
            *("--log-dir", str(tmp_path / "log"), str(program)),
        ],
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    logs = "".join(f"--- {f}\n{f.read_text()}" for f in sorted(tmp_path.glob("log/*")))
    assert done.returncode == 0, done.stdout + done.stderr + logs
    return (tmp_path / "log" / "worker_0.log").read_text()


@pytest.mark.parametrize("view", [False, True])
def test_torch_a_bucket_is_summed_where_all_ranks_see_it(tmp_path: Path, view: bool) -> None:
    job(
        tmp_path,
        """
assert moved == [summed[300 * 301]], (moved, summed)
assert model.module.weight.grad.is_shared() == VIEW
folder = _engine.engine.seat.place.directory
dist.barrier()
assert len([name for name in os.listdir(folder) if name.startswith("sums-")]) == 2
maps = open("/proc/self/maps").read()
assert maps.count(folder + "/sums-") == 2, maps  # Its own, and that of the other.
assert "/dev/shm/torch_" not in maps
links = {os.readlink(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd")
         if os.path.islink(f"/proc/self/fd/{f}")}
assert not [link for link in links if link.startswith("/dev/shm/torch_")], links
dist.barrier()
""".replace("VIEW", str(view)),
        view,
    )


def test_torch_without_room_buckets_are_summed_by_way_of_copies(tmp_path: Path) -> None:
    patch = (
        "full = os.statvfs_result((4096, 4096, 100, 99, 99, 1, 1, 1, 0, 255))\n"
        "os.statvfs = lambda path: full"
    )
    log = job(
        tmp_path, "\nassert moved == [] and not _engine.engine.buckets.pending\n", True, patch
    )
    assert log.count("gradients are summed by way of copies") == 1
    assert "no room in /dev/shm" in log


def test_torch_moves_a_storage_in_place() -> None:
    whole = torch.arange(100_000.0)
    part, before = whole[10:20], whole.data_ptr()
    whole.untyped_storage()._share_fd_cpu_()
    assert whole.data_ptr() != before and whole.data_ptr() % 4096 == 0
    whole[10] = 7.0
    assert part[0] == 7.0 and part[9] == 19.0
