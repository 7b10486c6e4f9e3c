"""A classifier trained by Lightning's Trainer, with callbacks; two batches make an update.

As it is:                     torchrun --nproc-per-node 2 lightning_trainer.py
With lightning_trainer.diff:  holdfast run --nproc-per-node 2 lightning_trainer.py
"""

from pathlib import Path

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
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


class Classifier(LightningModule):
    """A net, its losses, its optimizer and its schedule."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(784, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10)
        )
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, sync_dist=True)
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self) -> None:
        """Log the worst loss of the epoch."""
        self.log("worst", max(self.losses), sync_dist=True)
        self.losses.clear()

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        """Log the share of pictures that the net knows."""
        x, y = batch
        self.log("right", (self.net(x).argmax(1) == y).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> dict[str, object]:
        """Return the optimizer, and a schedule per epoch."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return {
            "optimizer": optimizer,
            "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
        }


def main() -> None:
    """Train; print the last loss and the best checkpoint."""
    seed_everything(0)
    best = ModelCheckpoint(monitor="right", mode="max", save_top_k=2, save_last=True)
    trainer = Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=3,
        accumulate_grad_batches=2,
        val_check_interval=0.5,
        log_every_n_steps=5,
        enable_progress_bar=False,
        callbacks=[best, EarlyStopping("right", mode="max", patience=9), LearningRateMonitor()],
    )
    trainer.fit(
        Classifier(),
        DataLoader(digits(4096), batch_size=32, shuffle=True),
        DataLoader(digits(500), batch_size=64),
    )
    if trainer.is_global_zero:
        loss, worst = trainer.callback_metrics["loss_epoch"], trainer.callback_metrics["worst"]
        where = Path(best.best_model_path).name
        print(f"loss {loss:.6f}, worst {worst:.6f}, best {best.best_model_score:.2%} in {where}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
