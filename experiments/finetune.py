"""Fine-tunes on labelled rows: ``python -m experiments.finetune RUN.yaml OUT_DIR``.

A classification or, where the source names no labels, a regression.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerBase

from experiments import models, session
from experiments.data import load_classification
from experiments.data.sources import check_score
from experiments.errors import command_line
from experiments.evaluate import batches, classification, predictions, regression
from experiments.scores import MAIN
from experiments.spec import RunSpec
from experiments.training import Task


def encode(split: Any, tokenizer: PreTrainedTokenizerBase, length: int) -> list[dict[str, Any]]:
    """Tokenized rows, cut to ``length`` tokens, not padded yet; ``labels`` where there are any.

    Args:
        split: columns ``text``, for pairs ``text_pair``, and ``label`` where it is not hidden.
        tokenizer: of the model.
        length: longest row in tokens.
    """
    columns = {name: list(split[name]) for name in split.column_names}
    encoded = tokenizer(
        columns["text"], columns.get("text_pair"), truncation=True, max_length=length
    )
    fields = {**encoded, "labels": columns["label"]} if "label" in columns else dict(encoded)
    return [dict(zip(fields, values, strict=True)) for values in zip(*fields.values(), strict=True)]


def make_task(run: RunSpec, data_dir: Path) -> Task:
    """Pretrained model with a fresh head, rows, metrics of every part, and the baseline."""
    check_score(run, run.run_id)
    splits, labels, manifest = load_classification(data_dir)
    model, tokenizer, fresh = models.classifier(
        run.model, seed=run.seeds.weights, dtype=run.train.dtype, labels=labels
    )
    rows = {
        name: encode(part, tokenizer, run.train.sequence_length) for name, part in splits.items()
    }
    ids = (token for part in rows.values() for row in part for token in row["input_ids"])
    models.check_vocabulary(run.model.name, model.config.vocab_size, max(ids))
    train = rows.pop("train")
    collate = DataCollatorWithPadding(tokenizer)
    batched = partial(batches, size=run.train.eval_batch_size, collate=collate)
    measure = regression if labels is None else classification
    hidden = {name: rows.pop(name) for name in manifest.get("unlabelled", [])}
    evaluate = {
        name: lambda model, part=part: measure(model, batched(part)) for name, part in rows.items()
    }

    def answers(model: PreTrainedModel) -> dict[str, str]:
        return {
            f"predictions_{name}.jsonl": _lines(predictions(model, batched(part)), labels)
            for name, part in hidden.items()
        }

    return Task(
        model=model,
        rows=train,
        collate=collate,
        evaluate=evaluate.pop(MAIN),
        further=evaluate,
        uniform_loss=_loss_at_start(train, labels),
        references={} if labels is None else {"majority_accuracy": manifest["majority_accuracy"]},
        fingerprint=manifest["source"]["fingerprint"],
        files=answers,
        fresh=fresh,
    )


def _lines(predicted: list[float], labels: list[str] | None) -> str:
    """One JSON object a row: ``index``, and ``prediction`` as GLUE's server takes it, by name."""
    named = [labels[int(value)] if labels else value for value in predicted]
    lines = ({"index": index, "prediction": answer} for index, answer in enumerate(named))
    return "".join(json.dumps(line) + "\n" for line in lines)


def _loss_at_start(train: list[dict[str, Any]], labels: list[str] | None) -> float:
    """Loss of a uniform guess; of a regression, of answering 0, as a fresh head about does."""
    if labels is None:
        return fmean(row["labels"] ** 2 for row in train)
    return math.log(len(labels))


if __name__ == "__main__":
    command_line(partial(session.main, "finetune", make_task))
