"""Held-out loss of finished runs on documents of another source: what of it carries over.

    python -m experiments.elsewhere TABLE.parquet RUN_DIR... --source c4_sample

The documents are the source's validation part, cut by the tokenizer that the run trained with, one
after another as in training; the loss is in nats a token of that tokenizer, so it compares runs of
one study only. The workflow makes the table where the source's files lie in ``data/local``.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from experiments import models, pretrain, spec, training
from experiments.data import TokenData, load_tokens
from experiments.data.packages import text_hash
from experiments.data.packed import encode, unigram_loss
from experiments.data.readers import open_source
from experiments.data.sources import missing, source_of
from experiments.errors import UserError, command_line
from experiments.evaluate import batches, language_loss
from experiments.spec import DataSpec, RunSpec
from memopt import catalog

MERGING = 1e-4  # relative change of the loss that rounding in merging explains
COLUMNS = (
    "run_id", "source", "fingerprint", "documents", "characters", "tokens", "loss", "unigram_loss",
)  # fmt: skip


def texts_of(source: str, path: str | None = None) -> list[str]:
    """The documents of a source's validation part.

    Raises:
        UserError: the source is unknown or no text, has no such part, or its files are not there.
    """
    asked = spec.parse(DataSpec, {"source": source, "path": path}, "--source")
    entry = source_of(asked)
    if entry.task != "text":
        raise UserError(f"source {source!r} is for {entry.task}: name one of documents")
    if "validation" not in entry.splits:
        raise UserError(f"source {source!r} has no validation part: a model may have learnt it all")
    if absent := missing(asked):
        raise UserError(absent)
    rows = open_source(entry, asked).splits["validation"]
    return [row[entry.fields["text"]] for row in rows]


def losses(run_dirs: list[Path], source: str, texts: list[str], data: Path) -> pd.DataFrame:
    """One row a run.

    Args:
        run_dirs: ``.../runs/RUN_ID`` of finished pretraining runs, whose final weights lie in
            ``.../work/RUN_ID/model``.
        source: their name for the table.
        texts: the documents.
        data: folder of prepared data, ``data/prepared``.

    Returns:
        Columns `COLUMNS`; ``tokens``: predicted ones; ``loss`` and ``unigram_loss`` (of the run's
        training tokens' frequencies) in nats a token, NaN where the run diverged.

    Raises:
        UserError: a run is unfinished, of another task, or its final weights are gone.
    """
    digest = ""
    for text in texts:
        digest = text_hash((digest, text))
    shared = {
        "source": source,
        "fingerprint": digest,
        "documents": len(texts),
        "characters": sum(map(len, texts)),
    }
    rows = [
        {"run_id": folder.name, **shared, **_measured(folder, texts, data)} for folder in run_dirs
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).sort_values("run_id", ignore_index=True)


def _measured(folder: Path, texts: list[str], data: Path) -> dict[str, float]:
    """Tokens and losses of one run."""
    run, summary = _finished(folder)
    prepared = load_tokens(data / run.data.data_id)
    ids = _tokens(prepared, texts)
    targets = np.bincount(ids[:, 1:].ravel(), minlength=prepared.vocab_size)
    result = {
        "tokens": ids[:, 1:].size,
        "loss": math.nan,
        "unigram_loss": unigram_loss(_counts(prepared), targets),
    }
    if summary["diverged"]:
        return result
    weights = folder.parent.parent / "work" / run.run_id / "model"
    if not (weights / "config.json").is_file():
        raise UserError(
            f"{weights}: the final weights of {run.run_id} are no longer there; delete {folder} and"
            f" train the run again, which gives the same bits"
        )
    model = AutoModelForCausalLM.from_pretrained(weights, dtype=getattr(torch, run.train.dtype))
    if not _ended_with(model, run, summary, prepared):
        raise UserError(f"{weights}: these are not the weights with which {run.run_id} ended")
    held_out = batches(ids, run.train.eval_batch_size, _collate)
    return result | {"loss": language_loss(model, held_out)["loss"]}


def _ended_with(
    model: PreTrainedModel, run: RunSpec, summary: dict[str, Any], prepared: TokenData
) -> bool:
    """Whether the saved model is the run's last; adapters are saved merged, with other weights."""
    if catalog.get(run.method.name).kind != "adapter":
        return bool(models.weights_sha256(model) == summary["weights_sha256"])
    held_out = batches(prepared.validation, run.train.eval_batch_size, pretrain.collate)
    loss = language_loss(model, held_out)["loss"]
    return math.isclose(loss, summary["final"]["validation_loss"], rel_tol=MERGING)


def _finished(folder: Path) -> tuple[RunSpec, dict[str, Any]]:
    """Specification and summary of a finished pretraining run."""
    summary = folder / "summary.json"
    if not summary.is_file():
        raise UserError(f"{summary} is missing: the run has not finished")
    run = spec.load(RunSpec, folder / "run.yaml")
    if run.task != "pretrain":
        raise UserError(f"{folder}: a {run.task} run; only pretrained language models are asked")
    return run, json.loads(summary.read_text(encoding="utf-8"))


def _tokens(prepared: TokenData, texts: list[str]) -> np.ndarray:
    """Whole rows of ids, shape (rows, sequence length); the incomplete last one is left out."""
    tokenizer = AutoTokenizer.from_pretrained(prepared.tokenizer)
    ids = encode(tokenizer, texts, prepared.vocab_size)
    length = prepared.validation.sequence_length
    if len(ids) < length:
        raise UserError(f"the documents have {len(ids)} tokens, less than one row of {length}")
    return ids[: len(ids) // length * length].reshape(-1, length)


def _counts(prepared: TokenData) -> np.ndarray:
    """How often each id occurs in the training rows, shape (vocabulary,)."""
    counts = np.zeros(prepared.vocab_size, dtype=np.int64)
    for row in range(len(prepared.train)):
        counts += np.bincount(prepared.train[row]["input_ids"], minlength=len(counts))
    return counts


def _collate(rows: list[np.ndarray]) -> dict[str, torch.Tensor]:
    ids = torch.from_numpy(np.stack(rows))
    return {"input_ids": ids, "labels": ids}


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.elsewhere")
    parser.add_argument("out", type=Path, metavar="TABLE.parquet")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    parser.add_argument("--source", required=True, metavar="NAME", help="of data/sources.yaml")
    parser.add_argument("--path", metavar="DIR", help="its files; default data/local/NAME")
    parser.add_argument("--data", type=Path, default=Path("data/prepared"), metavar="DIR")
    arguments = parser.parse_args()
    training.prepare_process(1)
    transformers.logging.disable_progress_bar()
    texts = texts_of(arguments.source, arguments.path)
    table = losses(arguments.runs, arguments.source, texts, arguments.data)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    table.to_parquet(arguments.out, index=False)
    print(f"{len(table)} runs on {len(texts)} documents in {arguments.out}")


if __name__ == "__main__":
    command_line(_main)
