"""A character GPT on the text of Python's own library, with DistributedDataParallel.

As it is:            torchrun --nproc-per-node 2 gpt.py
With gpt.diff:       holdfast run --nproc-per-node 2 gpt.py
"""

import argparse
import inspect

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

LENGTH, WIDTH = 64, 128


class Text(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a text, and the same one character further."""

    def __init__(self) -> None:
        raw = inspect.getsource(argparse).encode("ascii", "replace")
        self.codes = torch.tensor(list(raw))

    def __len__(self) -> int:
        """Return the number of pieces."""
        return (len(self.codes) - 1) // LENGTH

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        """Return a piece and the same one character further."""
        at = i * LENGTH
        return self.codes[at : at + LENGTH], self.codes[at + 1 : at + LENGTH + 1]


class GPT(nn.Module):
    """A decoder: every character sees those before it."""

    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.characters = nn.Embedding(128, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.1, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, 128)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of each next character."""
        h = self.characters(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h, src_mask=self.mask, is_causal=True)
        return self.head(h)


def main() -> None:
    """Train, and print the last loss."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    data = Text()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
