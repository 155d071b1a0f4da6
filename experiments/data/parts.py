"""Prepared rows on disk: one Parquet file a part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.packages import Row, text_hash
from experiments.data.tokens import read_manifest
from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.spec import DataSpec

if TYPE_CHECKING:
    from datasets import DatasetDict


def write_parts(folder: Path, spec: DataSpec, parts: Mapping[str, list[Row]]) -> dict[str, Any]:
    """Writes ``<part>.parquet`` for each; returns ``splits`` of the manifest.

    Raises:
        UserError: a part has no rows.
    """
    import pyarrow as pa
    from pyarrow import parquet

    splits = {}
    for name, rows in parts.items():
        if not rows:
            raise UserError(f"source {spec.source!r}: the {name} part has no rows")
        parquet.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
        splits[name] = {"rows": len(rows), "text_sha256": text_hash(map(canonical_json, rows))}
    return splits


def load_parts(folder: Path, kind: str) -> tuple[DatasetDict, dict[str, Any]]:
    """The parts of a prepared folder, and its manifest.

    Raises:
        UserError: the folder is not there, not complete, or of another kind.
    """
    from datasets import Dataset, DatasetDict
    from pyarrow import parquet

    manifest = read_manifest(folder, kind)
    parts = {}
    for name in manifest["splits"]:
        file = folder / f"{name}.parquet"
        if not file.is_file():
            raise UserError(f"{file} is missing: delete {folder} and prepare it again")
        parts[name] = Dataset.from_dict(parquet.read_table(file).to_pydict())
    return DatasetDict(parts), manifest
