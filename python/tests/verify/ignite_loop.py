"""A handler of Ignite's Engine counts in a global; kept, an object that is a handler counts."""

import sys
import time
from typing import Any

import ignite.distributed as idist
import torch
from common import KEPT, say
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import (
    Checkpoint,
    DiskSaver,
    EarlyStopping,
    LRScheduler,
    global_step_from_engine,
)
from ignite.metrics import Accuracy, Loss, RunningAverage
from torch import nn
from torch.utils.data import TensorDataset

import holdfast.torch as hf
from holdfast.torch.ignite import hold

SLOW = "slow" in sys.argv[1:]  # For rehearsals: more steps, and pauses.
count = 0


def decay(_: Engine) -> None:
    global count
    count += 1
    optimizer.param_groups[0]["weight_decay"] = 0.1 * count


class Decay:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: Engine) -> None:
        self.count += 1
        optimizer.param_groups[0]["weight_decay"] = 0.1 * self.count


def score(evaluator: Engine) -> float:
    return -evaluator.state.metrics["loss"]


hf.init()
torch.manual_seed(0)
net = nn.Sequential(
    nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4)
)
model = idist.auto_model(net)
optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), lr=0.01))
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
train = idist.auto_dataloader(data, batch_size=4 if SLOW else 16, shuffle=True)
test = idist.auto_dataloader(data, batch_size=32)
loss = nn.CrossEntropyLoss()
trainer = create_supervised_trainer(model, optimizer, loss)
evaluator = create_supervised_evaluator(model, {"right": Accuracy(), "loss": Loss(loss)})
RunningAverage(output_transform=lambda x: x).attach(trainer, "loss")
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
trainer.add_event_handler(Events.ITERATION_COMPLETED, LRScheduler(schedule))
trainer.add_event_handler(Events.ITERATION_STARTED, Decay() if KEPT else decay)
trainer.add_event_handler(Events.ITERATION_STARTED, lambda: time.sleep(SLOW))
history: list[Any] = []


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate() -> None:
    evaluator.run(test)
    history.append(round(evaluator.state.metrics["loss"], 6))


best = Checkpoint(
    {"model": net},
    DiskSaver("best", require_empty=False),
    n_saved=2,
    score_function=score,
    global_step_transform=global_step_from_engine(trainer),
)
evaluator.add_event_handler(Events.COMPLETED, best)
evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(200, score, trainer))
every = Checkpoint({"trainer": trainer, "model": net}, DiskSaver("all", require_empty=False))
trainer.add_event_handler(Events.ITERATION_COMPLETED(every=5), every)
hold(trainer, model, optimizer, history=history)
trainer.run(train, max_epochs=100 if SLOW else 3)
say(f"loss {trainer.state.metrics['loss']:.6f}, tested {history}, best {best.last_checkpoint}")
idist.finalize()
