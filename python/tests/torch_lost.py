"""Runs of a PyTorch program whose jobs may lose everything."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from everything_lost import whole

PROGRAM = """
import signal
import sys
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
import holdfast.torch as hf

hf.init()
torch.manual_seed(0)
WIDTH, OUT, PAUSE = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
hidden = nn.BatchNorm1d(WIDTH), nn.Dropout(0.2)
net = nn.Sequential(nn.Linear(16, WIDTH), *hidden, nn.Linear(WIDTH, 4))
model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.5)
ITEMS = int(sys.argv[4])
data = TensorDataset(torch.randn(ITEMS, 16), torch.randint(0, 4, (ITEMS,)))
loader = DataLoader(data, batch_size=10, sampler=DistributedSampler(data))
state = hf.State(model, optimizer, scheduler=scheduler)
run = state.vars(loss=0.0)
for x, y in state.steps(loader, epochs=3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
    run.loss = loss.item()
    import time
    time.sleep(PAUSE)
rank = torch.distributed.get_rank()
torch.save([model.state_dict(), optimizer.state_dict(), scheduler.state_dict(), run.loss,
            torch.get_rng_state()], f"{OUT}-{rank}.pt")
torch.distributed.destroy_process_group()
"""


class Runs:
    """Runs of one program in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.snapshots = folder / "snapshots"
        (folder / "program.py").write_text(PROGRAM)

    def start(
        self, name: str, *options: str, width: int = 32, pause: float = 0.0, items: int = 800
    ) -> subprocess.Popen[str]:
        command = [
            *(sys.executable, "-m", "holdfast", "run", "--nproc-per-node=2"),
            *(f"--log-dir={self.folder / f'log-{name}'}", *options),
            *("program.py", str(width), name, str(pause), str(items)),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def saved(self, name: str) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.folder.glob(f"{name}-*.pt"))]

    def until_there_are(self, count: int, run: subprocess.Popen[str]) -> None:
        end = time.monotonic() + 120
        while len(whole(self.snapshots)) < count:
            assert run.poll() is None, run.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.01)
