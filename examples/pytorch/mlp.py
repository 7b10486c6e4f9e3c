"""A multi-layer perceptron on made-up digits, with DistributedDataParallel.

As it is:            torchrun --nproc-per-node 2 mlp.py
With mlp.diff:       holdfast run --nproc-per-node 2 mlp.py
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def digits(count: int) -> TensorDataset:
    """Return noisy pictures of ten patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 784, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(
        patterns[labels] + 2 * torch.randn(count, 784, generator=generator), labels
    )


def main() -> None:
    """Train, and print the last loss."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(784, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10)
    )
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 200, 0.5)
    data = digits(16384)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=64, sampler=sampler, num_workers=2)

    for epoch in range(3):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
