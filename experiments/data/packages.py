"""What packages carry, as rows with fields like those of any other source."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from experiments.data import docstrings, functions
from experiments.data.prose import is_prose, plain_text
from experiments.data.sources import NpmSource, PackageSource
from experiments.errors import UserError

Row = dict[str, Any]
Progress = Callable[[str, int, int | None], None]  # what, done, of how many


def read(source: PackageSource, workers: int, progress: Progress) -> list[Row]:
    """The rows of a package source: documents with ``text``, instructions, or images."""
    if source.reader == "digits":
        return _digits()
    if source.reader == "wikipedia":
        return list(_wikipedia_articles(progress))

    def shown(done: int, total: int) -> None:
        progress("reading files", done, total)

    if source.reader == "docstring_instructions":
        made = functions.read(source.distributions, workers, shown)
        return [instruction._asdict() for instruction in made]
    documents = docstrings.read(source.distributions, workers, shown)
    return [
        {
            "text": "\n".join(document.paragraphs),
            "distribution": document.distribution,
            "module": document.module,
        }
        for document in documents
    ]


def _digits() -> list[Row]:
    """scikit-learn's digits: ``image``, 64 whole numbers from 0 to 16 row by row, and ``label``."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return [
        {"image": image, "label": label}
        for image, label in zip(
            digits.data.astype(int).tolist(), digits.target.tolist(), strict=True
        )
    ]


def read_npm(source: NpmSource, folder: Path) -> list[Row]:
    """One document a text file of an installed or unpacked npm package."""
    files = sorted(folder.glob(source.files))
    if not files or not (folder / "package.json").is_file():
        raise UserError(
            f"no {source.files} in {folder}: run `npm install {source.package}` here, or give "
            f"the unpacked package's folder as 'path' beside 'source'"
        )
    return [{"text": file.read_text(encoding="utf-8"), "module": file.name} for file in files]


def npm_version(source: NpmSource, folder: Path) -> dict[str, str]:
    """The version of an npm package, by its name."""
    content = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    return {source.package: content["version"]}


def text_hash(texts: Iterable[str]) -> str:
    """SHA-256 (hexadecimal) of documents in their order, each closed by a zero byte."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def _wikipedia_articles(progress: Progress) -> Iterator[Row]:
    """The prose of the Wikipedia articles among gensim's test files, wiki mark-up taken out."""
    try:
        from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    except ImportError:
        raise UserError("source 'wikipedia_gensim' needs gensim: pip install gensim") from None
    import bz2

    dumps = (f for f in metadata.files("gensim") or [] if f.match("enwiki-latest-*.xml-*.bz2"))
    with bz2.open(str(next(dumps).locate())) as dump:
        for number, (title, text, _) in enumerate(extract_pages(dump, ("0",)), 1):
            lines = (
                plain_text(re.sub("'{2,}", "", line)) for line in filter_wiki(text).split("\n")
            )
            prose = "\n".join(line for line in lines if is_prose(line))
            if prose:
                yield {"text": prose, "distribution": "gensim", "module": title}
            progress("reading articles", number, None)
