"""Batches of instruction rows: padded, or several rows to one without seeing each other.

A packed row carries ``position_ids`` that start again at 0 with each document. transformers'
models read the documents' borders from them (``masking_utils.find_packed_sequence_indices``) and
let attention stay within a document, if no ``attention_mask`` is given beside them and the model
keeps no cache (``config.use_cache``); :func:`require_borders` tries it out.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from transformers import PreTrainedModel

from experiments.errors import UserError
from experiments.evaluate import Batch, evaluating
from experiments.prompts import IGNORED

Row = dict[str, list[int]]
# Of float32 logits between two orders of summation, against their size; borders that are not
# respected show as differences of the size of the logits themselves.
TOLERANCE = 1e-3


def padded(rows: list[Row], padding: int) -> Batch:
    """A batch of rows, filled on the right to the longest: ids, labels, ``attention_mask``."""
    length = max(len(row["input_ids"]) for row in rows)
    lengths = torch.tensor([len(row["input_ids"]) for row in rows])
    return {
        "input_ids": _filled(rows, "input_ids", length, padding),
        "labels": _filled(rows, "labels", length, IGNORED),
        "attention_mask": (torch.arange(length) < lengths[:, None]).long(),
    }


def pack(rows: list[Row], length: int) -> list[Row]:
    """Puts rows together, in their order, as many as ``length`` tokens hold."""
    packs: list[Row] = []
    for row in rows:
        size = len(row["input_ids"])
        if not packs or len(packs[-1]["input_ids"]) + size > length:
            packs.append({"input_ids": [], "labels": [], "position_ids": []})
        packs[-1]["input_ids"] += row["input_ids"]
        packs[-1]["labels"] += row["labels"]
        packs[-1]["position_ids"] += range(size)
    return packs


def packed(packs: list[Row], length: int, padding: int) -> Batch:
    """A batch of packed rows; what fills them up to ``length`` is a document of its own."""
    positions = [[*row["position_ids"], *range(length - len(row["position_ids"]))] for row in packs]
    return {
        "input_ids": _filled(packs, "input_ids", length, padding),
        "labels": _filled(packs, "labels", length, IGNORED),
        "position_ids": torch.tensor(positions),
    }


def require_borders(model: PreTrainedModel, rows: list[Row], length: int, padding: int) -> None:
    """Sees to it that the model keeps the documents of a packed row apart.

    Compares its logits on the first packed row of two or more documents with those on the
    documents alone.

    Raises:
        UserError: they differ: the model does not read borders from ``position_ids``.
    """
    for first, second in itertools.pairwise(rows):
        if len(first["input_ids"]) + len(second["input_ids"]) > length:
            continue
        both = packed(pack([first, second], length), length, padding)
        apart = padded([second], padding)
        start, size = len(first["input_ids"]), len(second["input_ids"])
        with evaluating(model):
            together = _logits(model, both)[0, start : start + size]
            alone = _logits(model, apart)[0]
        if not torch.allclose(together, alone, rtol=0, atol=TOLERANCE * alone.abs().max().item()):
            raise UserError(
                f"{type(model).__name__} lets the documents of a packed row see each other: "
                f"use 'rows: padded'"
            )
        return


def _logits(model: PreTrainedModel, batch: Batch) -> torch.Tensor:
    given: dict[str, Any] = {k: v.to(model.device) for k, v in batch.items() if k != "labels"}
    return model(**given).logits.float()


def _filled(rows: list[Row], key: str, length: int, value: int) -> torch.Tensor:
    """One key of the rows, shape (rows, length), int64."""
    return torch.tensor([row[key] + [value] * (length - len(row[key])) for row in rows])
