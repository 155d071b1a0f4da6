"""Prepared token data as a data set of rows."""

from __future__ import annotations

import bisect
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.data.packed import is_padding
from experiments.errors import UserError

MANIFEST = "manifest.json"


class Rows:
    """Rows of ``sequence_length`` token ids, read from disk when asked for.

    ``rows[i]`` is ``{"input_ids", "labels"}``, int64 arrays of shape (sequence_length,): a
    map-style data set for a torch ``DataLoader`` and the Trainer. Labels are the ids, and -100
    where a row of the layout ``papers`` is padding. The order is the files' own; shuffling is the
    sampler's. It pickles, so that workers may open it.

    Args:
        folder: with the files.
        part: the split's part of the manifest.
        sequence_length: tokens of a row.
        dtype: of the ids in the files.
        padded_with: the end-of-document id where rows are padded with it; None: no padding.
    """

    def __init__(
        self,
        folder: Path,
        part: dict[str, Any],
        sequence_length: int,
        dtype: str,
        padded_with: int | None = None,
    ) -> None:
        self.sequence_length = sequence_length
        self.padded_with = padded_with
        self.tokens: int = part["tokens"]
        self.documents: int = part["documents"]
        self.dtype = np.dtype(dtype)
        self._files = []
        self._starts = [0]  # first row of each file, and the end
        for shard in part["shards"]:
            file = folder / shard["file"]
            size = file.stat().st_size if file.is_file() else -1
            if size != shard["tokens"] * self.dtype.itemsize:
                held = "is missing" if size < 0 else f"holds {size} bytes"
                raise UserError(
                    f"{file} {held}; the manifest says {shard['tokens']} tokens of "
                    f"{self.dtype.itemsize} bytes: delete {folder} and prepare it again"
                )
            self._files.append(file)
            self._starts.append(self._starts[-1] + shard["tokens"] // sequence_length)
        self._maps: list[np.ndarray | None] = [None] * len(self._files)

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        number = bisect.bisect_right(self._starts, row) - 1
        start = (row - self._starts[number]) * self.sequence_length
        ids = self._map(number)[start : start + self.sequence_length].astype(np.int64)
        if self.padded_with is None:
            return {"input_ids": ids, "labels": ids}
        return {"input_ids": ids, "labels": np.where(is_padding(ids, self.padded_with), -100, ids)}

    def __getitems__(self, rows: list[int]) -> list[dict[str, np.ndarray]]:
        """Several rows at once; what a ``DataLoader`` calls for a batch."""
        return [self[row] for row in rows]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_maps": [None] * len(self._files)}

    def _map(self, number: int) -> np.ndarray:
        opened = self._maps[number]
        if opened is None:
            opened = np.memmap(self._files[number], dtype=self.dtype, mode="r")
            self._maps[number] = opened
        return opened


@dataclass(frozen=True)
class TokenData:
    """What pretraining reads.

    Attributes:
        train, validation: rows of token ids; ``.tokens`` counts all tokens of the split (padding
            included), ``len(...) * sequence_length`` those in whole rows, which one epoch sees.
        vocab_size: entries of the tokenizer; a model needs at least as many.
        manifest: content of ``manifest.json``.
        tokenizer: folder for ``AutoTokenizer.from_pretrained``.
    """

    train: Rows
    validation: Rows
    vocab_size: int
    manifest: dict[str, Any]
    tokenizer: Path


def read_manifest(folder: Path, kind: str) -> dict[str, Any]:
    """The manifest of a prepared folder.

    Raises:
        UserError: the folder is not there, not complete, or of the other kind.
    """
    file = folder / MANIFEST
    if not file.is_file():
        raise UserError(
            f"{folder} holds no prepared data (no {MANIFEST}): "
            f"run `python -m experiments.data prepare DATA.yaml {folder}`"
        )
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise UserError(f"{file} is damaged: delete {folder} and prepare it again") from None
    if manifest.get("kind") != kind:
        raise UserError(f"{folder} holds {manifest.get('kind')!r} data, needed is {kind!r}")
    return manifest


def split_rows(folder: Path, manifest: dict[str, Any], split: str) -> Rows:
    """One split of a token folder, as its manifest describes it."""
    return Rows(
        folder,
        manifest["splits"][split],
        manifest["sequence_length"],
        manifest["dtype"],
        manifest["tokenizer"]["end_of_document"] if manifest["layout"] == "papers" else None,
    )


def load_tokens(data_dir: str | Path) -> TokenData:
    """Opens token data that ``prepare`` made; nothing is read before it is asked for."""
    folder = Path(data_dir)
    manifest = read_manifest(folder, "tokens")
    parts = {split: split_rows(folder, manifest, split) for split in ("train", "validation")}
    return TokenData(
        vocab_size=manifest["vocab_size"],
        manifest=manifest,
        tokenizer=folder / "tokenizer",
        **parts,
    )
