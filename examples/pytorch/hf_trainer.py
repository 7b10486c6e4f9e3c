"""A small GPT-2, made from its configuration, trained by Hugging Face's Trainer.

As it is:              torchrun --nproc-per-node 2 hf_trainer.py
With hf_trainer.diff:  holdfast run --nproc-per-node 2 hf_trainer.py
"""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed


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


def main() -> None:
    """Train, and print the last loss."""
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
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
    )
    trainer = Trainer(
        GPT2LMHeadModel(config), arguments, train_dataset=Tokens(2048), eval_dataset=Tokens(128)
    )
    trainer.train()
    loss = trainer.evaluate()["eval_loss"]
    if dist.get_rank() == 0:
        print(f"loss {loss:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
