"""A callback of Lightning's Trainer counts in a global; kept, in an attribute."""

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from common import KEPT
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast.torch as hf
from holdfast.torch.lightning import hold

SLOW = "slow" in sys.argv[1:]  # For rehearsals: more steps, and pauses.
count = 0


class Decay(Callback):
    def __init__(self) -> None:
        self.count = 0

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        global count
        if KEPT:
            self.count += 1
        else:
            count += 1
        for group in trainer.optimizers[0].param_groups:
            group["weight_decay"] = 0.1 * (self.count if KEPT else count)


class Classifier(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)
        )

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        time.sleep(SLOW)
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True, prog_bar=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        x, y = batch
        self.log("tested", nn.functional.cross_entropy(self.net(x), y), sync_dist=True)

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


hf.init()
seed_everything(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
best = ModelCheckpoint(monitor="tested", save_top_k=2, save_last=True)
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    max_epochs=100 if SLOW else 3,
    accumulate_grad_batches=2,
    val_check_interval=0.5,
    log_every_n_steps=2,
    logger=CSVLogger("logs"),
    callbacks=[best, EarlyStopping("tested", patience=200), LearningRateMonitor(), Decay()],
)
hold(trainer)
trainer.fit(
    Classifier(),
    DataLoader(data, batch_size=4 if SLOW else 8, shuffle=True),
    DataLoader(data, batch_size=16),
)
if trainer.is_global_zero:
    print(f"loss {trainer.callback_metrics['loss_epoch']:.6f}, best {best.best_model_path}")
dist.destroy_process_group()
