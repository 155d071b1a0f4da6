"""Labelled rows: from a source's official fields to ``text``, ``text_pair`` and ``label``."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.packages import Progress, Row
from experiments.data.parts import load_parts, write_parts
from experiments.data.readers import Corpus
from experiments.data.sources import AnySource, PackageSource
from experiments.data.splits import hold_out, in_seeded_order, in_slice, refuse_fraction
from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.spec import DataSpec

if TYPE_CHECKING:
    from datasets import DatasetDict

# What would give a paragraph's library away by name, with what hangs on it ("np.linalg.norm").
_LIBRARY_NAME = re.compile(
    r"\b(?:np|pd|sp|sklearn|scikit-learn|numpy|pandas|scipy|sympy|torch|pytorch)\b[\w.]*", re.I
)
REPLACEMENT = "it"


def write(
    folder: Path,
    spec: DataSpec,
    source: AnySource,
    corpus: Corpus,
    progress: Progress,
) -> dict[str, Any]:
    """Writes one Parquet file a split; returns their part of the manifest."""
    progress("labelling rows", 0, None)
    if isinstance(source, PackageSource):
        held_out, train = _origin_rows(corpus, spec, source)
    else:
        held_out, train = _labelled_rows(corpus, spec, source)
    splits = write_parts(folder, spec, {"train": train, "validation": held_out})
    return {
        "labels": source.labels,
        "fields": list(train[0]),
        "splits": splits,
        "majority_accuracy": majority_accuracy(train, held_out) if source.labels else None,
    }


def majority_accuracy(train: list[Row], held_out: list[Row]) -> float:
    """Accuracy on held-out rows of always answering with the commonest training label."""
    commonest = Counter(row["label"] for row in train).most_common(1)[0][0]
    return sum(row["label"] == commonest for row in held_out) / len(held_out)


def load_classification(data_dir: str | Path) -> tuple[DatasetDict, list[str] | None, Row]:
    """Opens what ``prepare`` made of a classification source.

    Returns:
        Splits ``train`` and ``validation`` with columns ``text``, perhaps ``text_pair``, and
        ``label`` (class number, or a float for a regression); the names of the classes (``None``
        for a regression); the manifest.
    """
    splits, manifest = load_parts(Path(data_dir), "classification")
    return splits, manifest["labels"], manifest


def _labelled_rows(
    corpus: Corpus, spec: DataSpec, source: AnySource
) -> tuple[list[Row], list[Row]]:
    """Held-out and training rows of a source that has labels of its own.

    An official split is taken as it is, in its order; otherwise rows are held out by the seed.
    """

    def rows_of(part: str, limit: int | None = None) -> list[Row]:
        rows = enumerate(corpus.splits[part], 1)
        made = (_row(row, f"{part} row {n}", spec, source) for n, row in rows)
        return list(islice((row for row in made if in_slice(canonical_json(row), spec)), limit))

    if "validation" in corpus.splits:
        refuse_fraction(spec)
        return rows_of("validation", spec.validation_documents), rows_of(
            "train", spec.max_documents
        )
    held_out, train = hold_out(map(canonical_json, rows_of("train")), spec)
    return [json.loads(row) for row in held_out], [json.loads(row) for row in train]


def _row(row: Row, number: str, spec: DataSpec, source: AnySource) -> Row:
    """One row under our names, its label checked."""
    made = {role: row[official] for role, official in source.fields.items()}
    label = made["label"]
    where = f"source {spec.source!r}, {number}"
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
    corpus: Corpus, spec: DataSpec, source: PackageSource
) -> tuple[list[Row], list[Row]]:
    """Paragraphs labelled by their library: split by module, then balanced.

    Names of libraries are taken out of the text; what then stands in two places is left out. Each
    class of a part keeps as many paragraphs as the smallest has, drawn by the seed.
    """
    documents = list(corpus.splits["train"])
    lines = {
        row["module"]: _LIBRARY_NAME.sub(REPLACEMENT, row["text"]).split("\n") for row in documents
    }
    library = {row["module"]: row["distribution"] for row in documents}
    times = Counter(line for module in lines.values() for line in module)

    def balanced(modules: Iterable[str]) -> list[Row]:
        by_class: dict[str, list[str]] = {name: [] for name in source.labels or []}
        for module in modules:
            by_class[library[module]] += [line for line in lines[module] if times[line] == 1]
        smallest = min(map(len, by_class.values()))
        label = {
            line: number
            for number, found in enumerate(by_class.values())
            for line in in_seeded_order(found, spec.seed)[:smallest]
        }
        return [{"text": line, "label": label[line]} for line in in_seeded_order(label, spec.seed)]

    modules = [module for module in library if in_slice(module, spec)]
    held_out, train = hold_out(modules, spec)
    return balanced(held_out), balanced(train)
