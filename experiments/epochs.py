"""Suites that count in epochs: how many updates those are."""

from __future__ import annotations

import math
from typing import Any

from experiments.data.sources import load_sources
from experiments.data.splits import TUNING_SHARE


def in_updates(train: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """``train`` of a study with ``epochs`` turned into ``steps``.

    An epoch has as many updates as it takes to see the official training rows (or ``max_documents``
    of them, or those of the ``slice``, which are about so many), the last one perhaps with rows of
    the next epoch. Unless ``eval_every`` says otherwise, each epoch ends with an evaluation.

    Args:
        train: keys of :class:`~experiments.spec.TrainSpec`, ``epochs`` in place of ``steps``.
        data: keys of :class:`~experiments.spec.DataSpec`.

    Raises:
        ValueError: ``steps`` is given as well, or nobody states how many rows there are.
    """
    epochs, batch = train["epochs"], train.get("batch_size")
    if "steps" in train:
        raise ValueError("'train' has 'steps' or 'epochs', not both")
    if not isinstance(epochs, int | float) or epochs <= 0:
        raise ValueError(f"'train.epochs' is a number above 0 (got {epochs!r})")
    if not isinstance(batch, int) or batch <= 0:
        raise ValueError("'train.epochs' needs 'train.batch_size', a whole number above 0")
    source = load_sources().get(data.get("source", ""))
    if source is None or source.train_rows is None:
        raise ValueError(
            f"'train.epochs': data/sources.yaml states no 'train_rows' of {data.get('source')!r}: "
            f"give 'steps'"
        )
    share = {"tuning": TUNING_SHARE, "final": 1 - TUNING_SHARE}.get(data.get("slice", ""), 1.0)
    rows = min(share * source.train_rows, data.get("max_documents", math.inf))
    epoch = math.ceil(rows / batch)
    rest = {key: value for key, value in train.items() if key != "epochs"}
    return {"steps": max(1, round(epochs * epoch)), "eval_every": epoch, **rest}
