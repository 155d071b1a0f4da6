"""Labelled images: a stratified split, one Parquet file a part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.data.classification import majority_accuracy
from experiments.data.packages import Progress, Row, text_hash
from experiments.data.readers import Corpus
from experiments.data.sources import AnySource
from experiments.data.splits import hold_out, in_seeded_order, in_slice
from experiments.data.tokens import read_manifest
from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.spec import DataSpec

DARKEST = 16  # of scikit-learn's digits


class Images(NamedTuple):
    """One part.

    Attributes:
        pixels: float32, shape (images, 1, side, side), from -1 (none) to 1 (all the ink).
        labels: int64, shape (images,).
    """

    pixels: np.ndarray
    labels: np.ndarray


def write(
    folder: Path, spec: DataSpec, source: AnySource, corpus: Corpus, progress: Progress
) -> dict[str, Any]:
    """Writes both parts, each class held out in the same share; returns their part of the manifest.

    Raises:
        UserError: a number of images is asked for, which would not say of which class.
    """
    for key in ("validation_documents", "max_documents"):
        if getattr(spec, key) is not None:
            raise UserError(
                f"source {spec.source!r}: images are held out class by class; give "
                f"'validation_fraction', not {key!r}"
            )
    progress("splitting images", 0, None)
    by_class: dict[int, list[str]] = {}
    for row in corpus.splits["train"]:
        item = canonical_json({role: row[name] for role, name in source.fields.items()})
        if in_slice(item, spec):
            by_class.setdefault(row[source.fields["label"]], []).append(item)
    parts: dict[str, list[str]] = {"train": [], "validation": []}
    for _, items in sorted(by_class.items()):
        held_out, rest = hold_out(items, spec)
        parts["train"] += rest
        parts["validation"] += held_out
    rows = {
        name: [json.loads(item) for item in in_seeded_order(items, spec.seed)]
        for name, items in parts.items()
    }
    return {
        "labels": source.labels,
        "splits": {name: _write_part(folder, name, part) for name, part in rows.items()},
        "majority_accuracy": majority_accuracy(rows["train"], rows["validation"]),
    }


def _write_part(folder: Path, name: str, rows: list[Row]) -> dict[str, Any]:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    return {"rows": len(rows), "text_sha256": text_hash(map(canonical_json, rows))}


def load_images(data_dir: str | Path) -> tuple[dict[str, Images], list[str], Row]:
    """Opens what ``prepare`` made of an image source.

    Returns:
        ``train`` and ``validation``; the names of the classes; the manifest.
    """
    from pyarrow import parquet

    folder = Path(data_dir)
    manifest = read_manifest(folder, "images")
    parts = {}
    for name in manifest["splits"]:
        file = folder / f"{name}.parquet"
        if not file.is_file():
            raise UserError(f"{file} is missing: delete {folder} and prepare it again")
        table = parquet.read_table(file).to_pydict()
        ink = np.asarray(table["image"], dtype=np.float32)
        side = round(ink.shape[1] ** 0.5)
        parts[name] = Images(
            (ink / (DARKEST / 2) - 1).reshape(len(ink), 1, side, side),
            np.asarray(table["label"], dtype=np.int64),
        )
    return parts, manifest["labels"], manifest
