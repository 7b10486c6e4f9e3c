"""A classifier trained by Ignite's Engine, with handlers, metrics and an evaluator.

As it is:                 torchrun --nproc-per-node 2 ignite_engine.py
With ignite_engine.diff:  holdfast run --nproc-per-node 2 ignite_engine.py
"""

import ignite.distributed as idist
import torch
import torch.distributed as dist
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EarlyStopping, global_step_from_engine
from ignite.metrics import Accuracy, Loss, RunningAverage
from torch import nn
from torch.utils.data import TensorDataset


def digits(count: int) -> TensorDataset:
    """Return noisy pictures of ten patterns."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(10, 784, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    return TensorDataset(
        patterns[labels] + 2 * torch.randn(count, 784, generator=generator), labels
    )


def score(evaluator: Engine) -> float:
    """Return the share of pictures that the net knows."""
    return evaluator.state.metrics["right"]


def main() -> None:
    """Train; print the last loss, what was found after each epoch, and the best checkpoint."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(784, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10)
    )
    model = idist.auto_model(net)
    optimizer = idist.auto_optim(torch.optim.AdamW(model.parameters(), lr=1e-3))
    train = idist.auto_dataloader(digits(4096), batch_size=64, shuffle=True)
    test = idist.auto_dataloader(digits(500), batch_size=128)
    loss = nn.CrossEntropyLoss()
    trainer = create_supervised_trainer(model, optimizer, loss)
    evaluator = create_supervised_evaluator(model, {"right": Accuracy(), "loss": Loss(loss)})
    RunningAverage(output_transform=lambda x: x).attach(trainer, "loss")
    history: list[float] = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate() -> None:
        evaluator.run(test)
        history.append(round(evaluator.state.metrics["loss"], 6))

    best = Checkpoint(
        {"model": net},
        DiskSaver("best", require_empty=False),
        score_function=score,
        global_step_transform=global_step_from_engine(trainer),
    )
    evaluator.add_event_handler(Events.COMPLETED, best)
    evaluator.add_event_handler(Events.COMPLETED, EarlyStopping(3, score, trainer))
    every = Checkpoint({"trainer": trainer, "model": net}, DiskSaver("all", require_empty=False))
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=5), every)
    trainer.run(train, max_epochs=3)
    if dist.get_rank() == 0:
        running = trainer.state.metrics["loss"]
        print(f"loss {running:.6f}, tests {history}, best in {best.last_checkpoint}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
