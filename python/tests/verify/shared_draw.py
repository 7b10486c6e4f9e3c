"""Ranks that share a generator decide by it whether to exchange; it belongs into State."""

import torch
import torch.distributed as dist
from common import KEPT, Task

import holdfast.torch as hf

task = Task()
draw = torch.Generator().manual_seed(7)
state = hf.State(task.model, task.optimizer, **({"draw": draw} if KEPT else {}))
for x, y in state.steps(task.loader):
    if torch.rand((), generator=draw) < 0.5:
        mean = x.mean(0)
        dist.all_reduce(mean)
        x = x - mean / dist.get_world_size()
    task.learn(x, y)
