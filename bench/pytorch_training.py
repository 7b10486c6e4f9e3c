"""The program that pytorch_recovery.py kills: one loop, kept alive by one of three means.

    pytorch_training.py {holdfast,torchrun,torchft} FOLDER [loader workers] [width]

Three linear layers, AdamW, 64 samples per rank and step. Writes lines of JSON to FOLDER: what was
done when (CLOCK_MONOTONIC), by whom.
"""

import json
import os
import sys
import time

how, folder = sys.argv[1], sys.argv[2]
workers = int(sys.argv[3]) if len(sys.argv) > 3 else 0
width = int(sys.argv[4]) if len(sys.argv) > 4 else 512
log = os.open(f"{folder}/{os.getpid()}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def say(event: str, **more: object) -> None:
    """Write a line."""
    line = {"t_ns": time.monotonic_ns(), "event": event, "pid": os.getpid(), **more}
    os.write(log, (json.dumps(line) + "\n").encode())


say("start")
if how == "holdfast":
    import holdfast

    holdfast.init()  # The scheduler serves in here, and never imports torch.

import datetime  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, Dataset, DistributedSampler  # noqa: E402

say("imported")
torch.set_num_threads(1)


class Data(Dataset[Any]):
    """Samples that are drawn by a seed that is their index."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return 20000

    def __getitem__(self, i: int) -> Any:
        """Return a sample and its class."""
        generator = torch.Generator().manual_seed(i)
        return torch.randn(784, generator=generator), i % 10


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
    )
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3)


def loader(rank: int | None = None, size: int | None = None) -> DataLoader[Any]:
    """Return this rank's batches. Arguments None: the process group's rank and size."""
    data = Data()
    sampler: Any = DistributedSampler(data, size, rank)
    return DataLoader(data, batch_size=64, sampler=sampler, num_workers=workers, drop_last=True)


def backward(model: Any, optimizer: Any, batch: Any) -> None:
    """Make a step up to its update."""
    optimizer.zero_grad()
    functional.cross_entropy(model(batch[0]), batch[1]).backward()


def under_holdfast() -> None:
    """Train for ever."""
    import holdfast.torch as hf

    hf.init()
    module, optimizer = build()
    model = DistributedDataParallel(module)
    batches = loader()
    say("built")
    state = hf.State(model, optimizer)
    rank = dist.get_rank()
    say("state", rank=rank)
    state.on_commit(lambda n: say("step", rank=rank, step=n))
    for batch in state.steps(batches, epochs=1000):
        backward(model, optimizer, batch)
        optimizer.step()


def under_torchrun() -> None:
    """Train for ever; rank 0 writes a checkpoint after every step."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=3))
    rank = dist.get_rank()
    say("group", rank=rank)
    module, optimizer = build()
    path, first = f"{folder}/checkpoint.pt", 0
    if os.path.exists(path):
        saved = torch.load(path)
        module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first = saved["step"]
    model = DistributedDataParallel(module)
    batches = loader()
    per_epoch = len(batches)
    say("state", rank=rank)
    n = first
    for epoch in range(first // per_epoch, 1000):
        batches.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
        for i, batch in enumerate(batches):
            if epoch * per_epoch + i < first:
                continue
            backward(model, optimizer, batch)
            optimizer.step()
            n += 1
            if rank == 0:
                state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save({**state, "step": n}, path + ".new")
                os.replace(path + ".new", path)
            say("step", rank=rank, step=n)


def under_torchft() -> None:
    """Train for ever as one of several replica groups, with Gloo."""
    from torchft import DistributedDataParallel as ReplicatedDataParallel
    from torchft import Manager, Optimizer, ProcessGroupGloo

    class Repaired(ReplicatedDataParallel):
        """Torchft 0.2.0 asserts when an all-reduce fails: hand back the buffer instead."""

        @staticmethod
        def _comm_hook(state: Any, bucket: Any) -> Any:
            work = state.allreduce(bucket.buffer())
            if work.wait() and getattr(future := work.get_future(), "_fut", None):
                return future._fut
            empty: Any = torch.futures.Future()
            empty.set_result(bucket.buffer())
            return empty

    rank, size = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["BENCH_RANKS"])
    module, optimizer = build()
    limit = datetime.timedelta(seconds=3)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit),
        min_replica_size=1,
        load_state_dict=lambda s: (
            module.load_state_dict(s["model"]),
            optimizer.load_state_dict(s["optimizer"]),
        ),
        state_dict=lambda: {"model": module.state_dict(), "optimizer": optimizer.state_dict()},
        replica_id=f"bench_{rank}",
        init_sync=False,
        quorum_retries=20,
        timeout=limit,
        quorum_timeout=datetime.timedelta(seconds=20),
        connect_timeout=datetime.timedelta(seconds=5),
        heartbeat_interval=datetime.timedelta(milliseconds=50),
    )
    model, wrapped = Repaired(manager, module), Optimizer(manager, optimizer)
    batches = loader(rank, size)
    say("state", rank=rank)
    while True:
        for batch in batches:
            before = manager.current_step()
            backward(model, wrapped, batch)
            wrapped.step()
            if manager.current_step() > before:
                say("step", rank=rank, step=manager.current_step())


if __name__ == "__main__":
    {"holdfast": under_holdfast, "torchrun": under_torchrun, "torchft": under_torchft}[how]()
