"""Pretrains a language model: ``python -m experiments.pretrain RUN.yaml OUT_DIR``."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import models, session
from experiments.data import load_tokens
from experiments.errors import command_line
from experiments.evaluate import Batch, batches, language_loss
from experiments.scores import perplexity
from experiments.spec import RunSpec
from experiments.training import Task


def collate(rows: list[dict[str, Any]]) -> Batch:
    """Batch of rows; labels are shifted by the model, and -100 where there is nothing to learn."""
    return {
        key: torch.from_numpy(np.stack([row[key] for row in rows]))
        for key in ("input_ids", "labels")
    }


def make_task(run: RunSpec, data_dir: Path) -> Task:
    """Model with fresh weights, token rows, held-out loss and the unigram baseline."""
    data = load_tokens(data_dir)
    model = models.language_model(
        run.model,
        seed=run.seeds.weights,
        dtype=run.train.dtype,
        largest_id=data.manifest["largest_id"],
    )
    held_out = partial(batches, data.validation, run.train.eval_batch_size, collate)
    return Task(
        model=model,
        rows=data.train,
        collate=collate,
        evaluate=lambda model: language_loss(model, held_out()),
        uniform_loss=math.log(model.config.vocab_size),
        references={"unigram_perplexity": perplexity(data.manifest["unigram_validation_loss"])},
        fingerprint=data.manifest["source"]["fingerprint"],
    )


if __name__ == "__main__":
    command_line(partial(session.main, "pretrain", make_task))
