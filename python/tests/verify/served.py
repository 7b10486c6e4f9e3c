"""A network that parameter servers keep: hf.ParameterServer. `kept`: as it should be."""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import KEPT, say
from torch import nn

import holdfast.torch as hf

total = 0.0

hf.init()
torch.set_num_threads(1)
torch.manual_seed(1)
net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
hf.ParameterServer(net, optimizer)
state = hf.State(net, optimizer)
run = state.vars(total=0.0)
while state.n < 10:
    with state.step():
        draw = torch.Generator().manual_seed(10 * state.n + dist.get_rank())
        x = torch.randn(4, 8, generator=draw)
        before = run.total if KEPT else total
        optimizer.zero_grad()
        loss = (net(x) - 0.1 * before).pow(2).mean()
        loss.backward()
        optimizer.step()
        total = run.total = before + 1.0
say("trained", state.n)
