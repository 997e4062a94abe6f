"""Hugging Face's Trainer with a tiny model made from a configuration: nothing is downloaded."""

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed


def make_data():
    generator = torch.Generator().manual_seed(7)
    tokens = torch.randint(0, 50, (96, 8), generator=generator)
    return [{"input_ids": row, "labels": int(row[0] > 25)} for row in tokens]


def main():
    set_seed(0)
    out = Path(os.environ.get("OUT", "."))
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            num_train_epochs=3,
            per_device_train_batch_size=8,
            learning_rate=1e-2,
            logging_steps=2,
            save_strategy="no",
            report_to="none",
            seed=0,
        )
        trainer = Trainer(model=BertForSequenceClassification(config), args=arguments, train_dataset=make_data())
        trainer.train()
        weights = {name: value.numpy() for name, value in trainer.model.state_dict().items()}
        np.savez(out / f"rank{arguments.process_index}.npz", **weights)


if __name__ == "__main__":
    main()
