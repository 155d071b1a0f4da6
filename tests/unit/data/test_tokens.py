"""Packed token data: counts in closed form, one document after another, nothing lost."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from experiments.data import load_tokens, packed
from experiments.data.prepare import prepare
from experiments.data.tokens import Rows
from experiments.errors import UserError
from experiments.spec import DataSpec


def all_ids(rows: Rows, folder: Path, split: str) -> np.ndarray:
    files = sorted(folder.glob(f"{split}-*.bin"))
    return np.concatenate([np.fromfile(file, rows.dtype) for file in files])


def test_every_document_once_with_its_end_mark(
    spec: DataSpec, documents: list[str], tmp_path: Path
) -> None:
    manifest = prepare(spec, tmp_path / "out")
    data = load_tokens(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    texts = {}
    for split, rows in (("train", data.train), ("validation", data.validation)):
        ids = all_ids(rows, tmp_path / "out", split)
        ends = np.flatnonzero(ids == tokenizer.eos_token_id)
        texts[split] = [tokenizer.decode(part[:-1]) for part in np.split(ids, ends + 1)[:-1]]
        # closed form: the tokens of each document and one more
        encoded = tokenizer(texts[split], add_special_tokens=False)["input_ids"]
        expected = sum(map(len, encoded)) + len(encoded)
        assert rows.tokens == manifest["splits"][split]["tokens"] == expected == len(ids)
        assert len(rows) == len(ids) // 16
        assert rows.documents == len(texts[split])
    assert len(texts["validation"]) == 10
    assert sorted(texts["train"] + texts["validation"]) == sorted(documents)


def test_rows_are_the_stream_cut_in_pieces(spec: DataSpec, tmp_path: Path) -> None:
    prepare(spec, tmp_path / "out")
    train = load_tokens(tmp_path / "out").train
    ids = all_ids(train, tmp_path / "out", "train")
    rows = np.stack([train[row]["input_ids"] for row in range(len(train))])
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows.ravel(), ids[: rows.size])
    np.testing.assert_array_equal(train[-1]["input_ids"], rows[-1])
    np.testing.assert_array_equal(train.__getitems__([3, 1])[0]["input_ids"], rows[3])
    with pytest.raises(IndexError):
        train[len(train)]
    again = pickle.loads(pickle.dumps(train))
    np.testing.assert_array_equal(again[5]["input_ids"], rows[5])


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=20),
    sequence_length=st.integers(1, 12),
    capacity=st.integers(1, 60),
)
def test_rows_never_cross_files(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    sequence_length: int,
    capacity: int,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    stream = np.arange(sum(lengths)) % 1000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "SHARD_TOKENS", capacity)
        writer = packed.ShardWriter(folder, "train", 1000, sequence_length)
        for part in np.split(stream, np.cumsum(lengths)[:-1]):
            writer.add(part, part)
    rows = Rows(folder, writer.summary(sequence_length), sequence_length, "<u2")
    assert rows.tokens == len(stream)
    assert len(rows) == len(stream) // sequence_length
    for row in range(len(rows)):
        expected = stream[row * sequence_length : (row + 1) * sequence_length]
        np.testing.assert_array_equal(rows[row]["input_ids"], expected)


def test_two_preparations_have_the_same_bytes(spec: DataSpec, tmp_path: Path) -> None:
    for name in ("one", "two"):
        prepare(spec, tmp_path / name)
    files = sorted(f.relative_to(tmp_path / "one") for f in (tmp_path / "one").rglob("*.*"))
    assert [str(file) for file in files] == [
        "manifest.json",
        "tokenizer/tokenizer.json",
        "tokenizer/tokenizer_config.json",
        "train-00000.bin",
        "validation-00000.bin",
    ]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_seed_decides_what_is_held_out(spec: DataSpec, tmp_path: Path) -> None:
    other = spec.model_copy(update={"seed": 1})
    one, two = prepare(spec, tmp_path / "one"), prepare(other, tmp_path / "two")
    assert one["source"]["corpus_fingerprint"] == two["source"]["corpus_fingerprint"]
    assert one["source"]["fingerprint"] != two["source"]["fingerprint"]


def test_text_that_looks_like_a_mark_is_text(spec: DataSpec, tmp_path: Path) -> None:
    file = tmp_path / "marks.jsonl"
    texts = [
        f"Document {n} has </s> and <pad> and <s> in its text, and goes on." for n in range(40)
    ]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    prepare(spec.model_copy(update={"path": str(file)}), tmp_path / "out")
    data = load_tokens(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(data.tokenizer)
    ids = all_ids(data.train, tmp_path / "out", "train")
    assert (ids == tokenizer.eos_token_id).sum() == data.train.documents == 30
    assert not (ids == tokenizer.pad_token_id).any()


def test_unigram_loss_in_closed_form() -> None:
    # counts 3, 1, 0 of a vocabulary of 3: smoothed 4/7, 2/7, 1/7
    loss = packed.unigram_loss(np.array([3, 1, 0]), np.array([1, 0, 1]))
    assert loss == pytest.approx(-(np.log(4 / 7) + np.log(1 / 7)) / 2, rel=1e-12)


def test_unigram_loss_of_a_folder_is_over_predicted_tokens(spec: DataSpec, tmp_path: Path) -> None:
    manifest = prepare(spec, tmp_path / "out")
    data = load_tokens(tmp_path / "out")
    counts = np.bincount(all_ids(data.train, tmp_path / "out", "train"), minlength=data.vocab_size)
    log_probability = np.log((counts + 1) / (counts + 1).sum())
    targets = [data.validation[row]["input_ids"][1:] for row in range(len(data.validation))]
    expected = -log_probability[np.concatenate(targets)].mean()
    assert manifest["unigram_validation_loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("vocab_size", "dtype"), [(300, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_the_type_holds_every_id(vocab_size: int, dtype: str) -> None:
    assert packed.dtype_for(vocab_size) == np.dtype(dtype)
    assert np.iinfo(packed.dtype_for(vocab_size)).max >= vocab_size - 1


def test_an_id_outside_the_vocabulary_is_refused(spec: DataSpec, tmp_path: Path) -> None:
    prepare(spec, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / "tokenizer")
    with pytest.raises(UserError, match="vocabulary has only 40 entries"):
        packed.encode(tokenizer, ["The model reads the text."], 40)


def test_a_damaged_folder_is_refused(spec: DataSpec, tmp_path: Path) -> None:
    prepare(spec, tmp_path / "out")
    shard = tmp_path / "out" / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(UserError, match="train-00000.bin holds .* the manifest says"):
        load_tokens(tmp_path / "out")
    shard.unlink()
    with pytest.raises(UserError, match="train-00000.bin is missing"):
        load_tokens(tmp_path / "out")
    with pytest.raises(UserError, match="holds no prepared data"):
        load_tokens(tmp_path / "nothing")
