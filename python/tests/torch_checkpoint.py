"""Save and load FSDP2 and DDP states by torch.distributed.checkpoint on the backend, in each rank.

Argument: a folder that all ranks share; each leaves `result-<rank>` there.
"""

import json
import sys
from typing import Any

import holdfast

holdfast.init()  # The scheduler serves in here, and never imports torch.

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402


def main(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("holdfast")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def steps(begin: int, end: int) -> None:
        for n in range(begin, end):
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * n + rank))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    def bits() -> list[Any]:
        return [p.to_local().tolist() for p in model.parameters()]  # type: ignore[attr-defined]

    def state() -> dict[str, Any]:
        parameters, moments = get_state_dict(model, optimizer)
        return {"model": parameters, "optimizer": moments}

    def restore(path: str) -> None:
        loaded = state()
        dcp.load(loaded, checkpoint_id=path)
        set_state_dict(
            model,
            optimizer,
            model_state_dict=loaded["model"],
            optim_state_dict=loaded["optimizer"],
        )

    background = dist.new_group()  # For the writing, while steps use the default group.
    steps(0, 3)
    dcp.save(state(), checkpoint_id=f"{folder}/now")
    future = dcp.async_save(state(), checkpoint_id=f"{folder}/meanwhile", process_group=background)
    steps(3, 6)
    expected = bits()
    future.result()
    same = []
    for name in ("now", "meanwhile"):
        restore(f"{folder}/{name}")
        steps(3, 6)
        same.append(bits() == expected)
    whole = get_model_state_dict(
        model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
    )
    with open(f"{folder}/result-{rank}", "w") as file:
        json.dump({"same": same, "whole": len(whole)}, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[2])
