"""A corpus of a few kilobytes, prepared by the project's own code; runs that take seconds."""

import json
import os
import random
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from experiments.data.prepare import prepare
from experiments.spec import DataSpec, RunSpec, parse

WORDS = ("the", "optimizer", "keeps", "moments", "of", "each", "weight", "and", "a", "step size")
ENCODER_WORDS = [f"w{i}" for i in range(30)]  # what `encoder` knows

# where the runs' documents lie; `prepared` writes them there, and the data of a run must be its own
DOCUMENTS = Path(tempfile.gettempdir()) / f"memopt-tests-{os.getpid()}" / "documents.jsonl"


def run_content(**train: Any) -> dict[str, Any]:
    """Plain values of a run that trains in about a second."""
    return {
        "task": "pretrain",
        "study": "test",
        "suite": "test",
        "model": {
            "name": "tiny",
            "shape": {
                "model_type": "llama",
                "vocab_size": 300,
                "hidden_size": 16,
                "intermediate_size": 40,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "max_position_embeddings": 64,
                "tie_word_embeddings": False,
            },
        },
        "method": {"name": "adamw", "lr": 1e-2},
        "data": {
            "source": "text_files",
            "path": str(DOCUMENTS),
            "tokenizer": {"kind": "bpe", "vocab_size": 300},
            "sequence_length": 16,
            "validation_documents": 20,
        },
        "train": {
            "steps": 12,
            "batch_size": 8,
            "micro_batches": 2,
            "sequence_length": 16,
            "schedule": {"name": "cosine", "warmup_fraction": 0.25, "min_lr_ratio": 0.1},
            "eval_every": 6,
            "log_every": 2,
            "checkpoint_every": 4,
            **train,
        },
    }


def make_run(content: dict[str, Any], **method: Any) -> RunSpec:
    """A run of these values, with another method if one is given."""
    if method:
        content = {**content, "method": method}
    return parse(RunSpec, content, "test")


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of prepared token data: 300 documents of a random walk over a few words."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = random.Random(0)
    DOCUMENTS.parent.mkdir(exist_ok=True)
    with DOCUMENTS.open("w") as file:
        for _ in range(300):
            text = " ".join(draw.choices(WORDS, k=30))
            file.write(json.dumps({"text": text}) + "\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepare(parse(DataSpec, run_content()["data"], "test"), folder / "prepared")
    yield folder / "prepared"
    shutil.rmtree(DOCUMENTS.parent)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny pretrained BERT: config, weights, tokenizer."""
    folder = tmp_path_factory.mktemp("encoder")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *ENCODER_WORDS]
    # `vocab_file=` would build a tokenizer of five entries and say nothing (transformers 5.24)
    BertTokenizerFast(vocab={word: i for i, word in enumerate(vocabulary)}).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder
