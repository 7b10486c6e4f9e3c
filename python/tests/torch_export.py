"""A program whose snapshots are exported: torch_export.py KIND FOLDER.

KIND: ddp, fsdp, or flat for FullyShardedDataParallel. It ends when there are two snapshots in
FOLDER/snapshots.
Rank 0 saves after each step what a program itself would save, as FOLDER/own-N.
"""

import sys

import holdfast

holdfast.init()  # The scheduler serves in here, and never imports torch.

from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from everything_lost import whole  # noqa: E402
from export_net import Net, batch, evaluate, optimizers  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import holdfast.torch as hf  # noqa: E402


def main(kind: str, folder: Path) -> None:
    torch.set_num_threads(1)
    hf.init()
    torch.manual_seed(3)
    net: Any = Net()
    model = net
    if kind == "ddp":
        model = DistributedDataParallel(net)
    elif kind == "flat":
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device("cpu"))
    else:
        from torch.distributed.fsdp import fully_shard

        fully_shard(net)
    optimizer, scheduler = optimizers(net)
    average = torch.zeros(4)
    state = hf.State(model, optimizer, scheduler=scheduler, average=average, seen=[])
    run = state.vars(best=0.0, counts={"a": torch.arange(3)})

    @state.on_commit
    def save(n: int) -> None:
        if dist.get_rank() or kind != "ddp":
            return
        own = {
            "model": net.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "loss": evaluate(net),
        }
        net.train()
        torch.save(own, folder / f"own-{n}")

    while not state.stopped:
        with state.step():
            if len(whole(folder / "snapshots")) >= 2:
                state.stop()
            x, y = batch(state.n, dist.get_rank())
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            average += 1
            run.best = float(state.n)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
