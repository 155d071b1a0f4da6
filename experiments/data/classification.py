"""Labelled rows: from a source's official fields to ``text``, ``text_pair`` and ``label``."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.readers import Corpus
from experiments.data.sources import AnySource, PackageSource
from experiments.data.splits import seeded_hash, split
from experiments.data.tokens import read_manifest
from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.spec import DataSpec

if TYPE_CHECKING:
    from datasets import DatasetDict

Row = dict[str, Any]

# What would give a paragraph's library away by name.
_NAMES = re.compile(
    r"\b(?:np|pd|sp|sklearn|scikit-learn|numpy|pandas|scipy)\b[\w.]*", flags=re.IGNORECASE
)


def write(
    folder: Path,
    spec: DataSpec,
    source: AnySource,
    corpus: Corpus,
    progress: Callable[[str, int, int | None], None],
) -> dict[str, Any]:
    """Writes one Parquet file a split; returns their part of the manifest."""
    from datasets import Dataset

    progress("labelling rows", 0, None)
    if isinstance(source, PackageSource):
        held_out, train = _origin_rows(list(corpus.splits["train"]), spec, source)
    else:
        held_out, train = _labelled_rows(corpus, spec, source)
    splits = {}
    for name, rows in (("train", train), ("validation", held_out)):
        Dataset.from_list(rows).to_parquet(folder / f"{name}.parquet")
        digest = hashlib.sha256()
        for row in rows:
            digest.update(canonical_json(row).encode() + b"\0")
        splits[name] = {"rows": len(rows), "text_sha256": digest.hexdigest()}
    content = {"labels": source.labels, "fields": list(train[0]), "splits": splits}
    if source.labels:
        most = Counter(row["label"] for row in held_out).most_common(1)[0][1]
        content["majority_accuracy"] = most / len(held_out)
    return content


def load_classification(data_dir: str | Path) -> tuple[DatasetDict, list[str] | None, Row]:
    """Opens what ``prepare`` made of a classification source.

    Returns:
        Splits ``train`` and ``validation`` with columns ``text``, perhaps ``text_pair``, and
        ``label`` (class number, or a float for a regression); the names of the classes (``None``
        for a regression); the manifest.
    """
    from datasets import Dataset, DatasetDict

    folder = Path(data_dir)
    manifest = read_manifest(folder, "classification")
    splits = {}
    for name in manifest["splits"]:
        file = folder / f"{name}.parquet"
        if not file.is_file():
            raise UserError(f"{file} is missing: delete {folder} and prepare it again")
        splits[name] = Dataset.from_parquet(str(file), keep_in_memory=True)
    return DatasetDict(splits), manifest["labels"], manifest


def _labelled_rows(
    corpus: Corpus, spec: DataSpec, source: AnySource
) -> tuple[list[Row], list[Row]]:
    """Rows of a source that has labels of its own."""

    def rows_of(name: str) -> list[Row]:
        return [
            _row(row, number, name, spec, source)
            for number, row in enumerate(corpus.splits[name], 1)
        ]

    by_key = {name: {canonical_json(row): row for row in rows_of(name)} for name in corpus.splits}
    held_out, train = split({name: list(rows) for name, rows in by_key.items()}, spec)
    every = {key: row for rows in by_key.values() for key, row in rows.items()}
    return [every[key] for key in held_out], [every[key] for key in train]


def _row(row: Row, number: int, part: str, spec: DataSpec, source: AnySource) -> Row:
    """One row under our names, its label checked."""
    made = {role: row[official] for role, official in source.fields.items()}
    label = made["label"]
    where = f"source {spec.source!r}, {part} row {number}"
    if source.labels is None:
        if not isinstance(label, int | float):
            raise UserError(f"{where}: the label {label!r} is no number")
        made["label"] = float(label)
    elif label in source.labels:
        made["label"] = source.labels.index(label)
    elif not isinstance(label, int) or not 0 <= label < len(source.labels):
        raise UserError(
            f"{where}: the label {label!r} is neither a number from 0 to "
            f"{len(source.labels) - 1} nor one of {source.labels}"
        )
    return made


def _origin_rows(
    documents: list[Row], spec: DataSpec, source: PackageSource
) -> tuple[list[Row], list[Row]]:
    """Paragraphs labelled by their library: split by module, then balanced.

    Names of the libraries are taken out of the text, and each class of a part keeps as many
    paragraphs as the smallest has, drawn by the seed.
    """
    library = {document["text"]: document["distribution"] for document in documents}
    held_out, train = split({"train": list(library)}, spec)

    def balanced(texts: Iterable[str]) -> list[Row]:
        by_class: dict[str, list[str]] = {name: [] for name in source.labels}
        for text in texts:
            by_class[library[text]] += [_NAMES.sub("it", line) for line in text.split("\n")]
        smallest = min(map(len, by_class.values()))
        if not smallest:
            raise UserError(f"source {spec.source!r}: a class has no row; give more documents")
        rows = [
            {"text": text, "label": label}
            for label, name in enumerate(source.labels)
            for text in islice(
                sorted(by_class[name], key=lambda text: seeded_hash(spec.seed, text)), smallest
            )
        ]
        return sorted(rows, key=lambda row: seeded_hash(spec.seed, row["text"]))

    return balanced(held_out), balanced(train)
