"""A job in the /dev/shm of a container: 64 MiB, as `docker run` gives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_torch_examples import EXAMPLES
from torch_job import needs_torch

pytestmark = [
    needs_torch,
    pytest.mark.skipif(
        os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"]).returncode != 0,
        reason="only who may mount can have a /dev/shm of its own",
    ),
]

MOUNT = 'mount -t tmpfs -o size=64m tmpfs /dev/shm && exec "$@"'
# Rank 1 and then rank 0 kill themselves, once each.
DIES = """
import os, signal
from pathlib import Path

def die(rank, mark):
    if os.environ["RANK"] == str(rank) and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "run", "--log-dir=log", *words]
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", MOUNT, "sh", *command],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def loss_in(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    (loss,) = [line for line in done.stdout.splitlines() if "loss" in line]
    return loss


def test_torch_the_first_example_survives_kills_with_64_mb(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text((EXAMPLES / "mlp.py").read_text())
    patch = ["patch", "-s", str(script), str(EXAMPLES / "mlp.diff")]
    subprocess.run(patch, check=True, capture_output=True)
    text = script.read_text()
    calm = loss_in(run(tmp_path, "--nproc-per-node=4", "train.py"))
    body = "        optimizer.zero_grad()\n"
    assert body in text
    kills = "        state.n == 9 and die(1, 'one')\n        state.n == 20 and die(0, 'two')\n"
    script.write_text(DIES + text.replace(body, kills + body))
    more = ("--spares=1", "--snapshot=snapshots", "--snapshot-every=15")
    killed = run(tmp_path, "--nproc-per-node=4", *more, "train.py")
    assert loss_in(killed) == calm
    assert "2 recoveries" in killed.stderr
    # In another /dev/shm: from the newest snapshot.
    assert loss_in(run(tmp_path, "--nproc-per-node=4", *more, "--resume=auto", "train.py")) == calm


def test_torch_a_state_that_has_no_room_is_told_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(
        "import torch, holdfast.torch as hf\n"
        "hf.init()\n"
        "model = torch.nn.Linear(4000, 2000)\n"
        "hf.State(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
    )
    done = run(tmp_path, "--nproc-per-node=2", "large.py")
    assert done.returncode == 1
    assert "No room in /dev/shm" in done.stderr and "--shm-size" in done.stderr, done.stderr
    assert "of 64 MiB are free" in done.stderr, done.stderr


def test_torch_a_state_that_grows_where_there_is_no_room_is_told_and_no_sigbus(
    tmp_path: Path,
) -> None:
    (tmp_path / "grows.py").write_text(
        "import os, torch, holdfast.torch as hf\n"
        "hf.init()\n"
        "model = torch.nn.Linear(4, 2)\n"
        "state = hf.State(model, torch.optim.SGD(model.parameters(), lr=0.1))\n"
        "run = state.vars(kept=b'')\n"
        "while state.n < 20:\n"
        "    with state.step():\n"
        "        if state.n == 5 and not os.path.exists('/dev/shm/other'):\n"
        "            pages = os.statvfs('/dev/shm').f_bavail - 256\n"
        "            with open('/dev/shm/other', 'wb') as file:\n"
        "                os.posix_fallocate(file.fileno(), 0, pages * 4096)\n"
        "        if state.n == 10:\n"
        "            run.kept = bytes(3_000_000)\n"
        "        model(torch.ones(4)).sum().backward()\n"
    )
    done = run(tmp_path, "--nproc-per-node=1", "grows.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "No room in /dev/shm" in done.stderr and " of 64 MiB are free" in done.stderr
    assert "SIGBUS" not in done.stderr
