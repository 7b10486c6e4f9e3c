"""Recommendation on MovieLens-100K, with the embeddings in tables of parameter servers.

pip download --no-deps recbole==1.2.1
holdfast run --nproc-per-node 2 --servers 2 movielens.py recbole-1.2.1-py3-none-any.whl

The ratings are GroupLens's (https://grouplens.org/datasets/movielens/100k). They are for research;
commercial use and redistribution are not allowed without permission. Cite F. M. Harper and
J. A. Konstan, The MovieLens Datasets, ACM TiiS 5 (2015).
"""

from __future__ import annotations

import hashlib
import sys
import zipfile

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import holdfast.torch as hf

RATINGS = "recbole/dataset_example/ml-100k/ml-100k.inter"


class TwoTowers(nn.Module):
    """A row for each user and each item: a bias, and a vector that a tower turns into another."""

    def __init__(self, dim: int = 16) -> None:
        """Describe the tables, and make the towers."""
        super().__init__()
        start = ("normal", 0.0, 0.1)
        self.users = hf.Embedding(None, 1 + dim, lr=0.05, initial=start, name="users")
        self.items = hf.Embedding(None, 1 + dim, lr=0.05, initial=start, name="items")
        self.user_tower, self.item_tower = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.mean = nn.Parameter(torch.tensor(3.5))

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        """Guess the ratings."""
        u, i = self.users(users), self.items(items)
        match = (self.user_tower(u[:, 1:]) * self.item_tower(i[:, 1:])).sum(1)
        return self.mean + u[:, 0] + i[:, 0] + match


def ratings(wheel: str) -> tuple[Tensor, Tensor]:
    """Return rows of user, item, rating: those to learn from, and a tenth that is held out."""
    lines = zipfile.ZipFile(wheel).read(RATINGS).decode().splitlines()[1:]
    rows = torch.tensor([[int(float(word)) for word in line.split("\t")[:3]] for line in lines])
    held_out = (rows[:, 0] * 7919 + rows[:, 1] * 104729) % 10 == 0
    return rows[~held_out], rows[held_out]


@torch.no_grad()
def error(model: nn.Module, test: Tensor) -> float:
    """Return the root of the mean square error. All ranks call it: each pulls rows."""
    guessed = model(test[:, 0], test[:, 1]).clamp(1, 5)
    return float((guessed - test[:, 2]).square().mean().sqrt())


def main() -> None:
    """Train; print the error after each epoch, and in the end a digest of all rows."""
    hf.init()
    torch.manual_seed(0)
    train, test = ratings(sys.argv[1])
    data = TensorDataset(train[:, 0], train[:, 1], train[:, 2].float())
    loader = DataLoader(data, batch_size=256, sampler=DistributedSampler(data))
    model = DistributedDataParallel(TwoTowers())
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    state = hf.State(model, optimizer)
    for epoch in state.epochs(int(sys.argv[2]) if len(sys.argv) > 2 else 5):
        for users, items, wanted in state.steps(loader):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(users, items), wanted).backward()
            optimizer.step()
        rmse = state.once(error, model.module, test)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: RMSE {rmse:.4f} on {len(test)} ratings", flush=True)
    with torch.no_grad():
        parts = [model.module.users(torch.arange(944)), model.module.items(torch.arange(1683))]
    parts += [parameter.detach() for parameter in model.parameters()]
    digest = hashlib.sha256(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()
    if dist.get_rank() == 0:
        print(f"digest {digest}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
