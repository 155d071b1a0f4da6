"""Fine-tunes a classifier: ``python -m experiments.finetune RUN.yaml OUT_DIR``."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from experiments import models, session
from experiments.data import load_classification
from experiments.errors import UserError, command_line
from experiments.evaluate import batches, classification
from experiments.spec import RunSpec
from experiments.training import Task


def encode(split: Any, tokenizer: PreTrainedTokenizerBase, length: int) -> list[dict[str, Any]]:
    """Tokenized rows with ``labels``, cut to ``length`` tokens, not padded yet.

    Args:
        split: columns ``text``, ``label`` and, for pairs, ``text_pair``.
        tokenizer: of the model.
        length: longest row in tokens.
    """
    pairs = split["text_pair"] if "text_pair" in split.column_names else None
    pair_list = list(pairs) if pairs is not None else None
    encoded = tokenizer(list(split["text"]), pair_list, truncation=True, max_length=length)
    return [
        {**{key: values[i] for key, values in encoded.items()}, "labels": label}
        for i, label in enumerate(split["label"])
    ]


def make_task(run: RunSpec, data_dir: Path) -> Task:
    """Pretrained encoder with a fresh head, rows, held-out metrics and the majority baseline."""
    splits, labels, manifest = load_classification(data_dir)
    if labels is None:
        raise UserError(f"source {run.data.source!r} is a regression, which is not supported yet")
    model, tokenizer = models.classifier(
        run.model, seed=run.seeds.weights, dtype=run.train.dtype, labels=labels
    )
    length = run.train.sequence_length
    train = encode(splits["train"], tokenizer, length)
    held_out_rows = encode(splits["validation"], tokenizer, length)
    ids = (token for row in (*train, *held_out_rows) for token in row["input_ids"])
    models.check_vocabulary(run.model.name, model.config.vocab_size, max(ids))
    collate = DataCollatorWithPadding(tokenizer)
    held_out = partial(batches, held_out_rows, run.train.eval_batch_size, collate)
    return Task(
        model=model,
        rows=train,
        collate=collate,
        evaluate=lambda model: classification(model, held_out()),
        uniform_loss=math.log(len(labels)),
        references={"majority_accuracy": manifest["majority_accuracy"]},
        fingerprint=manifest["source"]["fingerprint"],
    )


if __name__ == "__main__":
    command_line(partial(session.main, "finetune", make_task))
