"""A training program for the tests of holdfast.torch. It kills itself as configured.

Arguments: a JSON object (see CONFIG), and a folder for what the tests look at.
"""

import json
import os
import sys

import holdfast

holdfast.init()  # The scheduler serves in here, and never imports torch.

import contextlib  # noqa: E402
import hashlib  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, Dataset, DistributedSampler  # noqa: E402

import holdfast.torch as hf  # noqa: E402
from holdfast.torch import _engine  # noqa: E402

CONFIG: dict[str, Any] = {
    "kind": "ddp",  # ddp, fsdp, hsdp, plain, FullyShardedDataParallel
    "original": False,  # The last one's use_orig_params.
    "ddp": {},  # Arguments of DistributedDataParallel
    "optimizer": "AdamW",
    "scaler": False,
    "accumulate": 1,
    "drop": "before",  # When gradients are dropped: before a window, or after its update.
    "window": 1,  # Only each n-th step exchanges gradients and makes an update.
    "loader_workers": 0,
    "samples": 160,
    "epochs": 2,
    "own_loop": False,
    "wait": 0.0,  # Seconds, in each step, so that a kill from outside hits a step.
    "hold": 0,  # The step in which to wait for a file FOLDER/go.
    "kills": [],  # [rank, step, where]: forward, collective, update, between; each once.
    "width": 64,  # Of the layers; 512: sums so large that they run beside the backward pass.
    "branch": False,  # Ranks use their layers in different orders.
    "regrown": 0,  # The width in a successor; 0: the same.
    "overflow": [],  # Steps whose loss is infinite.
    "staged": [],  # Ranks whose buckets are not moved.
    "power": False,  # DDP's sums go by PowerSGD.
    "seed_by_life": False,  # A successor begins with other parameters.
}


class Data(Dataset[Any]):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(count, 16, generator=generator)
        self.y = torch.randint(0, 4, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> Any:
        return self.x[i] + 0.1 * torch.randn(16), self.y[i]  # Augmented at random.


class Net(nn.Module):
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width = config["width"]
        self.first = nn.Linear(16, width)
        self.norm = nn.BatchNorm1d(width)
        self.middle = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(width, 4)
        self.branch = config["branch"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.norm(self.first(x)))
        order = list(self.middle)
        if self.branch and dist.get_rank() == 1:
            order.reverse()
        for layer in order:
            x = self.drop(functional.relu(layer(x)))
        out: torch.Tensor = self.last(x)
        return out


class Killer:
    """Kills this process, once for each entry of the list."""

    def __init__(self, kills: list[list[Any]], folder: str) -> None:
        self.kills, self.folder = kills, folder
        self.step = 0

    def at(self, where: str) -> None:
        for rank, step, place in self.kills:
            if (step, place) != (self.step, where) or rank != dist.get_rank():
                continue
            with contextlib.suppress(FileExistsError):
                os.close(
                    os.open(f"{self.folder}/killed-{rank}-{step}-{where}", os.O_CREAT | os.O_EXCL)
                )
                os.kill(os.getpid(), signal.SIGKILL)


def local(tensor: Any) -> torch.Tensor:
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found.detach().contiguous()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, str]:
    parts: dict[str, list[Any]] = {
        "parameters": list(model.parameters()),
        "buffers": list(model.buffers()),
        "optimizer": [
            v
            for p in model.parameters()
            for _, v in sorted(optimizer.state[p].items())
            if torch.is_tensor(v)
        ],
    }
    return {
        name: hashlib.sha256(b"".join(local(t).numpy().tobytes() for t in tensors)).hexdigest()[:16]
        for name, tensors in parts.items()
    }


def build(config: dict[str, Any]) -> nn.Module:
    if config["regrown"] and int(os.environ.get("HOLDFAST_ATTEMPT", "1")) > 1:
        config = {**config, "width": config["regrown"]}
    net = Net(config)
    if config["kind"] == "ddp":
        return DistributedDataParallel(net, **config["ddp"])
    if config["kind"] in ("fsdp", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        world = dist.get_world_size()
        shape = (world,) if config["kind"] == "fsdp" else (2, world // 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("a", "b")[: len(shape)])
        for layer in net.middle:
            fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
    if config["kind"] == "FullyShardedDataParallel":
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        return FullyShardedDataParallel(
            net,
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=torch.device("cpu"),
            use_orig_params=config["original"],
        )
    return net


def main(config: dict[str, Any], folder: str) -> None:
    torch.set_num_threads(1)
    hf.init()
    killer = Killer(config["kills"], folder)
    torch.manual_seed(os.getpid() if config["seed_by_life"] else 0)
    model = build(config)
    optimizer = getattr(torch.optim, config["optimizer"])(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=1024.0, growth_interval=3, enabled=config["scaler"]
    )
    data = Data(config["samples"])
    loader = DataLoader(
        data, batch_size=8, sampler=DistributedSampler(data), num_workers=config["loader_workers"]
    )
    seen: dict[str, Any] = {"losses": {}, "replayed": []}
    done: list[int] = []
    engine = _engine.engine
    assert engine is not None
    if config["staged"] and dist.get_rank() in config["staged"]:
        engine.buckets.expect = lambda sizes: None
    named: dict[str, Any] = {"scheduler": scheduler, "scaler": scaler, "seen": seen, "done": done}
    if config["power"]:
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        named["hook"] = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=1, start_powerSGD_iter=3, min_compression_rate=0.5
        )
        model.register_comm_hook(named["hook"], powerSGD_hook.powerSGD_hook)
    state = hf.State(model, optimizer, **named)
    kind = type(dist.group.WORLD)
    for name in ("allreduce", "all_gather_single", "allgather"):

        def watched(self: Any, *arguments: Any, usual: Any = getattr(kind, name)) -> Any:  # noqa: B008
            killer.at("collective")
            return usual(self, *arguments)

        setattr(kind, name, watched)

    def body(x: torch.Tensor, y: torch.Tensor) -> float:
        n = killer.step = state.n + 1
        killer.at("forward")
        with open(f"{folder}/pid-{dist.get_rank()}.new", "w") as file:
            file.write(f"{os.getpid()} {n}")
        os.replace(f"{folder}/pid-{dist.get_rank()}.new", f"{folder}/pid-{dist.get_rank()}")
        if state.replaying:
            seen["replayed"].append(n)
        first, updates = (n - 1) % config["window"] == 0, n % config["window"] == 0
        if first and config["drop"] == "before":
            optimizer.zero_grad()
        parts = config["accumulate"]
        for k in range(parts):
            last = k == parts - 1 and updates
            sync = (
                model.no_sync()
                if config["kind"] == "ddp" and not last
                else contextlib.nullcontext()
            )
            with sync:
                loss = functional.cross_entropy(model(x + k), y) / parts
                if n in config["overflow"]:
                    loss = loss * float("inf")
                scaler.scale(loss).backward()
        time.sleep(config["wait"])
        while n == config["hold"] and not os.path.exists(f"{folder}/go"):
            time.sleep(0.01)
        if updates:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(
                model.parameters(), 1.0, error_if_nonfinite=not config["scaler"]
            )
            killer.at("update")
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            if config["drop"] == "after":
                optimizer.zero_grad()
        seen["losses"][n] = loss.item()
        done.append(n)
        killer.at("between")
        return loss.item()

    run = state.vars(total=0.0)
    if config["own_loop"]:
        while state.n < 20:
            generator = torch.Generator().manual_seed(100 + state.n)
            x, y = (
                torch.randn(8, 16, generator=generator),
                torch.randint(0, 4, (8,), generator=generator),
            )
            with state.step():
                run.total += body(x, y)
    else:
        for x, y in state.steps(loader, epochs=config["epochs"]):
            run.total += body(x, y)
    result = {
        "n": state.n,
        "scale": scaler.get_scale(),
        "rate": scheduler.get_last_lr(),
        "losses": seen["losses"],
        "total": run.total,
        "done": done,
        "beside": any(thread.name == "holdfast-sums" for thread in threading.enumerate()),
        "moved": len(engine.buckets.moved),
        **digest(model, optimizer),
    }
    with open(f"{folder}/result-{dist.get_rank()}", "w") as file:
        json.dump(result, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main({**CONFIG, **json.loads(sys.argv[1])}, sys.argv[2])
