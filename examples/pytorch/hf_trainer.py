"""A small GPT-2, made from its configuration, trained by Hugging Face's Trainer, with callbacks.

As it is:              torchrun --nproc-per-node 2 hf_trainer.py
With hf_trainer.diff:  holdfast run --nproc-per-node 2 hf_trainer.py
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Tokens(Dataset[dict[str, Tensor]]):
    """Made-up text of 64 words, each of which follows from the one before, mostly."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        steps = torch.randint(1, 3, (count, 32), generator=generator)
        self.tokens = steps.cumsum(1) % 64

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.tokens)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        """Return a piece; the model shifts the labels itself."""
        return {"input_ids": self.tokens[i], "labels": self.tokens[i]}


class Smoothed(TrainerCallback):
    """Smooths the losses that are logged."""

    def __init__(self) -> None:
        self.loss = 0.0

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        """Take a loss in."""
        if "loss" in logs:
            self.loss = 0.9 * self.loss + 0.1 * logs["loss"]


def main() -> None:
    """Train; print the loss of the best model, where it was saved, and the smoothed loss."""
    set_seed(0)
    config = GPT2Config(
        vocab_size=64,
        n_positions=32,
        n_embd=64,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    arguments = TrainingArguments(
        output_dir="out",
        num_train_epochs=3,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=6,
        save_strategy="steps",
        save_steps=6,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    smoothed = Smoothed()
    trainer = Trainer(
        GPT2LMHeadModel(config),
        arguments,
        train_dataset=Tokens(2048),
        eval_dataset=Tokens(128),
        callbacks=[smoothed, EarlyStoppingCallback(early_stopping_patience=3)],
    )
    trainer.train()
    loss, best = trainer.evaluate()["eval_loss"], trainer.state.best_model_checkpoint
    if dist.get_rank() == 0:
        print(f"loss {loss:.4f}, best in {best}, smoothed {smoothed.loss:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
