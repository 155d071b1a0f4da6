"""Text that packages carry, as rows with fields like those of any other source."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from experiments.data import docstrings
from experiments.data.sources import NpmSource, PackageSource
from experiments.errors import UserError

Row = dict[str, Any]


def read(
    source: PackageSource, workers: int, progress: Callable[[str, int, int | None], None]
) -> tuple[list[Row], str]:
    """The rows of a package source, and the SHA-256 of their text."""
    documents = docstrings.read(
        source.distributions, workers, lambda done, total: progress("reading files", done, total)
    )
    rows = [
        {
            "text": "\n".join(document.paragraphs),
            "distribution": document.distribution,
            "module": document.module,
        }
        for document in documents
    ]
    return rows, text_hash(row["text"] for row in rows)


def read_npm(source: NpmSource, folder: Path) -> tuple[list[Row], str]:
    """One row a text file of an installed or unpacked npm package."""
    files = sorted(folder.glob(source.files))
    if not files:
        raise UserError(
            f"no {source.files} in {folder}: run `npm install {source.package}` here, or give "
            f"the unpacked package's folder as 'path' beside 'source'"
        )
    rows = [{"text": file.read_text(encoding="utf-8"), "module": file.name} for file in files]
    return rows, text_hash(row["text"] for row in rows)


def text_hash(texts: Iterable[str]) -> str:
    """SHA-256 (hexadecimal) of documents in their order, each closed by a zero byte."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()
