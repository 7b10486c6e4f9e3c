"""A program of several kinds, by its argument. Some kinds keep the rule of State, some do not."""

from __future__ import annotations

import random
import sys
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import holdfast.torch as hf

KIND = sys.argv[1]
# "much": everything that usual programs do, in one program.
MUCH = KIND == "much"
hf.init()
torch.manual_seed(1)


class Data(Dataset):
    mosaic = False

    def __len__(self) -> int:
        return 512

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        x = torch.randn(16, generator=torch.Generator().manual_seed(i))
        if MUCH:
            x = x + random.random() + np.random.rand() + torch.rand(1)
        return (2 * x if self.mosaic else x), i % 4


class Environment:
    """An environment with a state of its own, which answers each action with an observation."""

    def __init__(self) -> None:
        self.observation = torch.ones(8, 16)

    def step(self, action: torch.Tensor) -> torch.Tensor:
        self.observation = 0.9 * self.observation + 0.1 * action.mean()
        return self.observation


data, environment = Data(), Environment()
loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
layers = [nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)]
if MUCH:
    layers.insert(1, nn.BatchNorm1d(32))
net = nn.Sequential(*layers)
if KIND == "fsdp2":
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(net)
elif KIND == "own sums":
    model = net
else:
    model = DistributedDataParallel(net)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 50)
state = hf.State(model, optimizer, schedule=schedule)
run = state.vars(best=9.0)
counter = {"n": 0}
cache: dict[str, torch.Tensor] = {}
began = time.monotonic()


def body(x: torch.Tensor, y: torch.Tensor) -> None:
    if KIND == "counter":
        counter["n"] += 1
        x = x + 1e-3 * counter["n"]
    elif KIND == "cache":
        x = x + cache.setdefault("first", x.mean())
    elif KIND == "environment":
        x = environment.step(x)
    elif KIND == "clock":
        x = x + (time.monotonic() - began)
    elif MUCH:
        total = x.mean(0)
        dist.all_reduce(total)
        x = x - total / dist.get_world_size()
    if MUCH:
        with model.no_sync():
            nn.functional.cross_entropy(model(x[:4]), y[:4]).backward()
    with torch.autocast("cpu", torch.bfloat16, enabled=MUCH):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if KIND == "own sums":
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
    if MUCH:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    run.best = min(run.best, float(loss.detach()))
    time.sleep(0.003)


for epoch in state.epochs(100_000):
    if KIND == "attribute" and epoch == 1:
        data.mosaic = True
    for x, y in state.steps(loader):
        body(x, y)
    if MUCH:
        state.once(lambda: run.best)
