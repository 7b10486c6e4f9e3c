"""A classifier trained with Hugging Face Accelerate, in a loop; two batches make an update.

As it is:                    torchrun --nproc-per-node 2 accelerate_loop.py
With accelerate_loop.diff:   holdfast run --nproc-per-node 2 accelerate_loop.py
"""

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def digits(count: int) -> TensorDataset:
    """Return noisy pictures of ten patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 784, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(
        patterns[labels] + 2 * torch.randn(count, 784, generator=generator), labels
    )


def accuracy(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Return the share of pictures that the model knows; each rank looks at its part of them."""
    model.eval()
    right = []
    with torch.no_grad():
        for x, y in loader:
            right.append(accelerator.gather_for_metrics(model(x).argmax(1) == y))
    model.train()
    return torch.cat(right).float().mean().item()


def main() -> None:
    """Train; print the last loss and the best accuracy."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    net = nn.Sequential(
        nn.Linear(784, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, 0.5)
    model, optimizer, scheduler, train, test = accelerator.prepare(
        net,
        optimizer,
        scheduler,
        DataLoader(digits(4096), batch_size=32, shuffle=True),
        DataLoader(digits(500), batch_size=64),
    )

    best = 0.0
    for _ in range(3):
        for x, y in train:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        best = max(best, accuracy(accelerator, model, test))
    accelerator.print(f"loss {loss.item():.4f}, best accuracy {best:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
