"""A small residual network on made-up pictures, with DistributedDataParallel.

As it is:            torchrun --nproc-per-node 2 cnn.py
With cnn.diff:       holdfast run --nproc-per-node 2 cnn.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Block(nn.Module):
    """Two convolutions and a way around them, as in ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(after), nn.BatchNorm2d(after)])
        self.around = nn.Sequential()
        if stride != 1 or before != after:
            self.around = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the pictures of the next layer."""
        y = torch.relu(self.norms[0](self.first(x)))
        return torch.relu(self.norms[1](self.second(y)) + self.around(x))


def network() -> nn.Module:
    """Return eight blocks and a head."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU()]
    width = 16
    for after, stride in ((16, 1), (16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
        layers.append(Block(width, after, stride))
        width = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def pictures(count: int) -> TensorDataset:
    """Return noisy pictures of ten kinds."""
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randn(10, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    noise = torch.randn(count, 3, 32, 32, generator=generator)
    return TensorDataset(kinds[labels] + 2 * noise, labels)


def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Return the share of pictures that the model knows; each rank looks at its part of them."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = data.tensors[0][rank::world], data.tensors[1][rank::world]
    model.eval()
    with torch.no_grad():
        right = (model(x).argmax(1) == y).sum()
    model.train()
    dist.all_reduce(right)
    return right.item() / len(data)


def main() -> None:
    """Train; print the last loss and the best accuracy."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    data, test = pictures(2048), pictures(128)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=2)

    best = 0.0
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        scheduler.step()
        best = max(best, accuracy(model.module, test))
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}, best accuracy {best:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
