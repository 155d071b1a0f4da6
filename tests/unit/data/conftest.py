"""Sources of a few kilobytes: text files, and distributions that are installed for one test."""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.data import sources
from experiments.spec import DataSpec

TEXT = (
    "the model reads a long text and counts how often each of its words was seen before it "
    "learns which one may follow another in the same sentence of a document"
)

BPE = {"kind": "bpe", "vocab_size": 300}


@pytest.fixture(autouse=True)
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty ``data/local``, whatever this machine has there."""
    monkeypatch.setattr(sources, "LOCAL", tmp_path / "local")
    (tmp_path / "local").mkdir()
    return tmp_path / "local"


def sentences(seed: int, number: int) -> list[str]:
    """Prose of made-up sentences, all different."""
    draw = random.Random(seed)
    return [
        f"The {' '.join(draw.choices(TEXT.split(), k=draw.randint(12, 20)))}."
        for _ in range(number)
    ]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def documents(tmp_path: Path) -> list[str]:
    """60 documents of 1 to 4 sentences, in ``documents.jsonl``."""
    texts = [" ".join(sentences(number, 1 + number % 4)) for number in range(60)]
    write_rows(tmp_path / "documents.jsonl", [{"text": text} for text in texts])
    return texts


@pytest.fixture
def spec(tmp_path: Path, documents: list[str]) -> DataSpec:
    return DataSpec(
        source="text_files",
        path=str(tmp_path / "documents.jsonl"),
        tokenizer=BPE,
        sequence_length=16,
        validation_documents=10,
    )


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Installs a distribution made of given files for the duration of a test."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def make(name: str, files: dict[str, str]) -> None:
        info = site / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        for path, content in files.items():
            file = site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        listed = [*files, f"{info.name}/METADATA", f"{info.name}/RECORD"]
        (info / "RECORD").write_text("".join(f"{path},,\n" for path in listed))
        assert not set(sys.modules) & {path.split("/")[0] for path in files}

    return make


@pytest.fixture
def add_source(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Adds an entry to the table of sources for the duration of a test."""
    table = dict(sources.load_sources())
    monkeypatch.setattr(sources, "load_sources", lambda: table)

    def add(name: str, **changes: Any) -> None:
        like = table[changes.pop("like")]
        table[name] = like.model_copy(update=changes)

    return add
