"""A LightningModule trained by a loop of one's own with Lightning Fabric.

As it is:               torchrun --nproc-per-node 2 fabric_loop.py
With fabric_loop.diff:  holdfast run --nproc-per-node 2 fabric_loop.py
"""

import lightning as L  # noqa: N812
import torch
import torch.distributed as dist
from lightning.fabric.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


def digits(count: int) -> TensorDataset:
    """Return noisy pictures of ten patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 784, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(
        patterns[labels] + 2 * torch.randn(count, 784, generator=generator), labels
    )


class Classifier(L.LightningModule):
    """A perceptron, as Lightning's Trainer would take it too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(784, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10)
        )

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        """Return how many pictures of a batch the model knows."""
        x, y = batch
        return (self.net(x).argmax(1) == y).sum()

    def configure_optimizers(self) -> tuple[list[torch.optim.Optimizer], list[object]]:
        """Return the optimizer and its scheduler."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def accuracy(fabric: L.Fabric, model: Classifier, loader: DataLoader, total: int) -> float:
    """Return the share of pictures that the model knows; each rank looks at its part of them."""
    model.eval()
    with torch.no_grad():
        right = sum(model.validation_step(batch, i) for i, batch in enumerate(loader))
    model.train()
    return fabric.all_reduce(right, reduce_op="sum").item() / total


def main() -> None:
    """Train; print the last loss and the best accuracy."""
    fabric = L.Fabric(accelerator="cpu", devices=2, strategy=DDPStrategy())
    fabric.launch()
    fabric.seed_everything(0)
    module = Classifier()
    (optimizer,), (scheduler,) = module.configure_optimizers()
    model, optimizer = fabric.setup(module, optimizer)
    train, test = fabric.setup_dataloaders(
        DataLoader(digits(4096), batch_size=32, shuffle=True),
        DataLoader(digits(512), batch_size=64),
    )

    best = 0.0
    for _ in range(3):
        for i, batch in enumerate(train):
            optimizer.zero_grad()
            loss = model.training_step(batch, i)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
        scheduler.step()
        best = max(best, accuracy(fabric, model, test, 512))
    fabric.print(f"loss {loss.item():.4f}, best accuracy {best:.2%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
