"""784-512-512-10 under PyTorch's DDP over Gloo, momentum, batch 16: what the benchmarks set beside Holdfast.

torchrun bench/ddp_loop.py FOLDER STEPS [--checkpoint]: writes a line of JSON per step into FOLDER, in the form of
Holdfast's traces; with --checkpoint saves after every step and goes on from there.
"""
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder, steps, keeps = Path(sys.argv[1]), int(sys.argv[2]), "--checkpoint" in sys.argv
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(3)
net = torch.nn.Sequential(torch.nn.Linear(784, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU(),
                          torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
saved = folder / "checkpoint.pt"
made = 0
if keeps and saved.exists():
    checkpoint = torch.load(saved)
    net.load_state_dict(checkpoint["net"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    made = checkpoint["step"]
ddp = torch.nn.parallel.DistributedDataParallel(net)
images, labels = torch.rand(1024, 784), torch.randint(0, 10, (1024,))
with open(folder / f"rank-{rank}-{os.getpid()}.jsonl", "a", buffering=1) as log:
    for step in range(made + 1, steps + 1):
        batch = torch.randint(0, 1024, (16,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
        optimizer.step()
        log.write(json.dumps({"event": "step", "t_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC), "pid": os.getpid(),
                              "rank": rank, "step": step}) + "\n")
        if keeps and rank == 0:
            new = saved.with_suffix(".new")
            torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, new)
            new.rename(saved)
dist.destroy_process_group()
