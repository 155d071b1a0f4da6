"""The layout of GaLore's script and its copies: one document a row, cut or padded."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from experiments.data import load_tokens, packed
from experiments.data.prepare import prepare
from experiments.data.tokens import TokenData
from experiments.pretrain import collate
from experiments.spec import DataSpec


def papers(spec: DataSpec) -> DataSpec:
    return spec.model_copy(update={"layout": "papers"})


def kept(data: TokenData) -> list[list[int]]:
    """Ids of each training row without padding."""
    rows = [data.train[row] for row in range(len(data.train))]
    return [row["input_ids"][row["labels"] != -100].tolist() for row in rows]


@given(lengths=st.lists(st.integers(0, 12), min_size=1, max_size=8), length=st.integers(2, 9))
def test_rows_are_cut_or_filled(lengths: list[int], length: int) -> None:
    end = 7
    documents = [list(range(10, 10 + size)) for size in lengths]
    ids = np.array([i for document in documents for i in (*document, end)])
    rows, real = packed.one_a_row(ids, length)
    expected = [[*document[: length - 1], end] for document in documents]
    assert [list(row[: len(e)]) for row, e in zip(rows, expected, strict=True)] == expected
    assert real.tolist() == sum(expected, [])
    assert rows.shape == (len(documents), length)
    assert packed.is_padding(rows, end).sum() == rows.size - real.size


def test_manifest_counts_documents_and_padding(
    spec: DataSpec, documents: list[str], tmp_path: Path
) -> None:
    manifest = prepare(papers(spec), tmp_path / "out")
    data = load_tokens(tmp_path / "out")
    part = manifest["splits"]["train"]
    assert len(data.train) == part["rows"] == part["documents"] == len(documents) - 10
    assert part["tokens"] - part["padding"] == sum(map(len, kept(data)))
    assert part["tokens"] == 16 * part["rows"]
    counts = np.bincount(np.concatenate(kept(data)), minlength=data.vocab_size)
    log_probability = np.log((counts + 1) / (counts + 1).sum())
    targets = np.concatenate([data.validation[row]["labels"][1:] for row in range(10)])
    expected = -log_probability[targets[targets != -100]].mean()
    assert manifest["unigram_validation_loss"] == pytest.approx(expected, rel=1e-12)


def test_padding_is_out_of_the_loss(spec: DataSpec, tmp_path: Path) -> None:
    """The batch's loss is the mean over each document's own predictions, computed alone."""
    prepare(papers(spec).model_copy(update={"sequence_length": 96}), tmp_path / "out")
    data = load_tokens(tmp_path / "out")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=data.vocab_size, hidden_size=16, intermediate_size=24,
        num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    rows = sorted(range(len(data.train)), key=lambda row: (data.train[row]["labels"] >= 0).sum())
    chosen = [rows[0], rows[1], rows[-1]]
    total, count = 0.0, 0
    with torch.no_grad():
        batch = model(**collate([data.train[row] for row in chosen])).loss.item()
        for row in chosen:
            ids = torch.tensor([kept(data)[row]])
            total += model(input_ids=ids, labels=ids).loss.item() * (ids.shape[1] - 1)
            count += ids.shape[1] - 1
    assert count < 2 * 95  # there was padding
    assert batch == pytest.approx(total / count, rel=1e-6)  # float32 sums


def c4(shared: Path, layout: str) -> DataSpec:
    return DataSpec(
        source="c4",
        path=str(shared / "data" / "c4"),
        tokenizer={"kind": "local", "path": str(shared / "data" / "tokenizers" / "t5-base")},
        sequence_length=256,
        layout=layout,
        max_documents=300,
    )


@pytest.mark.shared
def test_on_real_c4_as_the_scripts_tokenize_it(shared: Path, tmp_path: Path) -> None:
    prepare(c4(shared, "papers"), tmp_path / "papers")
    data = load_tokens(tmp_path / "papers")
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    texts = pq.read_table(shared / "data" / "c4" / "train.parquet")["text"].to_pylist()[:300]
    # the call of the official scripts; T5 closes a text with </s> by itself
    theirs = tokenizer(texts, max_length=256, truncation=True, padding="max_length")
    expected = [
        [i for i, used in zip(ids, mask, strict=True) if used]
        for ids, mask in zip(theirs["input_ids"], theirs["attention_mask"], strict=True)
    ]
    assert kept(data) == expected


@pytest.mark.shared
def test_layouts_agree_on_real_c4(shared: Path, tmp_path: Path) -> None:
    """Packed documents, cut to 255 pieces and closed, are the rows of the other layout."""
    for layout in ("packed", "papers"):
        prepare(c4(shared, layout), tmp_path / layout)
    one, two = (load_tokens(tmp_path / layout) for layout in ("packed", "papers"))
    stream = np.concatenate(
        [np.fromfile(file, "<u2") for file in sorted((tmp_path / "packed").glob("train-*.bin"))]
    )
    end = one.manifest["tokenizer"]["end_of_document"]
    documents = np.split(stream, np.flatnonzero(stream == end)[:-1] + 1)
    assert kept(two) == [[*document[:-1][:255].tolist(), end] for document in documents]
    fingerprints = [data.manifest["source"]["fingerprint"] for data in (one, two)]
    assert fingerprints[0] == fingerprints[1]
