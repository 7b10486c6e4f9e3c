"""Small programs of two ranks with kills, each compared with its run without kills."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_warm import by_hand

# Defines rank, model, optimizer, batch(i); at(place): where a kill may come, once; train(x): makes
# the step; leave(...): writes what is compared.
BEGIN = """
import hashlib, json, math, os, random, signal, sys
import torch, torch.distributed as dist, holdfast.torch as hf
from torch.nn.parallel import DistributedDataParallel as DDP
config, folder = json.loads(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
hf.init()
rank = dist.get_rank()
def at(*place):
    if [rank, *place] in config["kills"]:
        try:
            open(f"{folder}/killed-{rank}-{place}", "x").close()
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)
torch.manual_seed(1)
random.seed(rank)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
def batch(i):
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(8 * rank + i))
data = [batch(i) for i in range(3)]
def train(x):
    optimizer.zero_grad()
    loss = (model(x) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()
def leave(*things):
    parts = [*model.state_dict().values()]
    parts += [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    bits = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in parts)).hexdigest()
    rates = [group["lr"] for group in optimizer.param_groups]
    json.dump([*things, rates, bits], open(f"{folder}/result-{rank}", "w"))
"""


def small(
    folder: Path,
    text: str,
    kills: Sequence[Sequence[Any]] = (),
    ranks: int = 2,
    environment: dict[str, str] | None = None,
    **config: Any,
) -> tuple[list[Any] | None, str]:
    """Run BEGIN and a text; return what the ranks leave (None: the program failed), and its output.

    `kills`: [rank, *place], each once.
    """
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(BEGIN + text)
    words = [str(program), json.dumps({"kills": kills, **config}), str(folder)]
    ended_well, said = by_hand(folder, words, ranks, environment, deaths=len(kills))
    if not ended_well:
        return None, said
    return [json.loads((folder / f"result-{rank}").read_text()) for rank in range(ranks)], said


def survives(
    folder: Path, text: str, kills: Sequence[Sequence[Any]], ranks: int = 2, **config: Any
) -> tuple[list[Any], str]:
    """Assert that a program leaves the same with kills; return that, and the output with kills."""
    calm, said = small(folder / "calm", text, (), ranks, **config)
    assert calm is not None, said
    killed, said = small(folder / "job", text, kills, ranks, **config)
    assert killed == calm, said
    return calm, said
