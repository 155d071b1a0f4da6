"""What a method costs in time, and its perplexity over Adam's beside what papers print."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import perplexity

from . import compare, rows, style
from .errors import FigureError

BASE = "galore"  # whose AdamW stands for that of papers of which no row of AdamW is at hand


def times(path: Path, runs: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, Any]]:
    """What ``benchmarks/update_time.py`` measured, for the lines of a suite's runs.

    Args:
        path: the file that it wrote.
        runs: final runs of runs.parquet, with ``label``.

    Returns:
        The keys of a line, ``time_ratio`` (of an update, to AdamW's), its smallest and largest
        value over parts of the rounds, ``time_low`` and ``time_high``, and ``extra_time`` in per
        cent; and the facts of the measurement.

    Raises:
        FigureError: the file is about other runs.
    """
    facts = json.loads(path.read_text(encoding="utf-8"))
    measured = pd.DataFrame(facts.pop("rows"))
    named = measured[["run_id", "ratio", "min", "max"]].merge(runs[["run_id", *rows.KEYS]])
    if len(named) < len(measured):
        lost = next(r for r in measured.run_id if r not in set(named.run_id))
        raise FigureError(
            f"{path}: {lost} is no run of these tables; measure again (benchmarks/README.md)"
        )
    named = named.rename(columns={"ratio": "time_ratio", "min": "time_low", "max": "time_high"})
    named["extra_time"] = 100 * (named.time_ratio - 1)
    return named.drop(columns="run_id"), facts


def table(runs: pd.DataFrame, timed: pd.DataFrame) -> pd.DataFrame:
    """Quality, bytes and time of each method: what :func:`compare.against` returns, and its costs.

    Args:
        runs: final runs of runs.parquet, with ``label``.
        timed: what :func:`times` returns.

    Returns:
        One row a line; ``weights_states``: bytes a weight of the model, weights included.
    """
    found = compare.against(runs).merge(timed, on=rows.KEYS, how="left", validate="one_to_one")
    held = runs.assign(bytes=runs.weights_bytes + runs.state_bytes_measured)
    held = held.groupby(rows.KEYS, sort=False).agg(bytes=("bytes", "max"))
    plain = runs[runs.method == "adamw"].groupby(["study", "model"]).parameters.first()
    found = found.join(held, on=rows.KEYS).join(plain.rename("plain"), on=["study", "model"])
    found["weights_states"] = found.pop("bytes") / found.pop("plain")
    return found


def printed_ratios(
    ours: pd.DataFrame, control: str, printed: perplexity.PrintedFile
) -> pd.DataFrame:
    """Perplexity over that of AdamW: ours, and in papers' tables of LLaMA on C4.

    Ratios, since perplexities of other text and tokenizers have no common scale.

    Args:
        ours: what :func:`compare.against` returns of one study and model.
        control: label of the line that is a control, none of the printed methods.
        printed: content of ``experiments/printed/perplexity.yaml``; its values at the end of
            training in the papers' main setting are used.

    Returns:
        One row a source and method that was run here: ``source``, ``label``, ``here`` with
        ``here_low`` and ``here_high`` (over AdamW), ``over_control``, one column a printed model
        (``printed_...``), and ``base``: whose AdamW the printed value is divided by.

    Raises:
        FigureError: two lines of one method beside the control.
    """
    mine = ours[ours.label != control].set_index("method")
    if mine.index.duplicated().any():
        raise FigureError("printed ratios: a method has two lines; choose the one that is printed.")
    wide = _printed(printed)
    wide = wide[wide.method.isin(mine.index)]
    for name, column in (("here", "difference"), ("here_low", "low"), ("here_high", "high")):
        wide[name] = wide.method.map(mine[column].map(math.exp))
    level = ours.difference[ours.label == control]
    wide["over_control"] = wide.here / math.exp(level.iloc[0]) if len(level) else math.nan
    wide["label"] = [style.look(method).label for method in wide.method]
    wide["_rank"] = [style.order(method) for method in wide.method]
    return wide.sort_values(["_rank", "source"], ignore_index=True).drop(columns="_rank")


def _printed(printed: perplexity.PrintedFile) -> pd.DataFrame:
    """Printed values over AdamW's: one row a source, method and base, one column a model."""
    cells = pd.DataFrame(
        [
            (cell.table, printed.tables[cell.table].source, cell.row.method, cell.model, cell.value)
            for cell in perplexity.cells(printed)
            if cell.row.variant == perplexity.MAIN and cell.row.at is None and not cell.row.reason
        ],
        columns=["table", "source", "method", "model", "value"],
    )
    adam = cells[cells.method == "adamw"].set_index(["table", "model"]).value
    own = cells.set_index(["table", "model"]).index.isin(adam.index)
    cells["base"] = cells.table.where(own, BASE)
    pairs = zip(cells.base, cells.model, strict=True)
    cells["ratio"] = cells.value / [adam.get(pair, math.nan) for pair in pairs]
    cells = cells[cells.method != "adamw"].dropna(subset=["ratio"])  # nobody's AdamW: 7B
    cells["base"] = cells.base.map(lambda name: printed.tables[name].source)
    wide = cells.pivot(index=["source", "method", "base"], columns="model", values="ratio")
    wide = wide[list(dict.fromkeys(cells.model))].add_prefix("printed_").reset_index()
    wide.columns.name = None
    return wide
