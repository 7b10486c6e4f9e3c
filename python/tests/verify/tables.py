"""Two tables and a small network. The second table is seen by no loss: only its rows tell.

With the argument `kept` it is written as it should be, `ids` has the next step's ids depend on the
rows looked up before, `lr` and `pushes` have a table's update depend on the process's age.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from common import say
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import holdfast.torch as hf

HOW = sys.argv[1]
STEPS = 12
last = 0
age = 0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users = hf.Embedding(None, 4, optimizer="adam", lr=0.1, name="users")
        self.unseen = hf.Embedding(50, 3, lr=0.1, name="unseen")
        self.top = nn.Linear(4, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.users(ids)).sum(1)


class Walk(nn.Module):
    """Looks at ids that follow from those before, which it remembers: `last` is not in State."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, ids: Tensor) -> Tensor:
        global last
        if HOW == "ids":
            ids = ids + last
            last = int(ids.max()) % 7
        return self.net(ids)


hf.init()
torch.set_num_threads(1)
torch.manual_seed(1)
rank = dist.get_rank()
net = Net()
model = Walk(DistributedDataParallel(net))
optimizer = torch.optim.SGD(net.top.parameters(), lr=0.1)
state = hf.State(model, optimizer)
while state.n < STEPS:
    with state.step():
        age += HOW in ("lr", "pushes")
        if HOW == "lr":
            net.users.lr = 0.1 / age
        draw = torch.Generator().manual_seed(10 * state.n + rank)
        ids = torch.randint(0, 40, (8,), generator=draw)
        optimizer.zero_grad()
        loss = (model(ids) - ids % 2).pow(2).mean()
        weight = float(age) if HOW == "pushes" else 1.0
        (loss + weight * net.unseen(ids % 5).sum()).backward()
        optimizer.step()
state.once(hf.save_tables, "rows")
say("done", state.n)
