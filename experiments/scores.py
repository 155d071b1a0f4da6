"""Metrics of a run's evaluations: what tables hold of them, and which evaluation counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from experiments.spec import ScoreSpec

MAIN = "validation"  # the part by which runs are ranked and an evaluation is selected
# Columns of metrics.parquet beside the loss, and under `final` of the summary.
QUALITY = ("accuracy", "f1", "matthews", "pearson", "spearman")
BENCHMARKED = ("choice_accuracy", "exact_match")  # columns too, of benchmarks after training
LESS_IS_BETTER = {"perplexity"}
FINAL_NAMES = {"loss": "validation_loss"}

Metrics = dict[str, float]
Row = dict[str, Any]


def final(parts: dict[str, Metrics]) -> Metrics:
    """Metrics by their names in the summary: ``accuracy``, ``validation_mismatched_accuracy``."""
    named = {FINAL_NAMES.get(key, key): value for key, value in parts.get(MAIN, {}).items()}
    for part, metrics in parts.items():
        if part != MAIN:
            named |= {f"{part}_{key}": value for key, value in metrics.items()}
    return named


def summary(spec: ScoreSpec | None, rows: Iterable[Row], last: dict[str, Metrics]) -> Row:
    """What a summary says of the held-out metrics.

    Args:
        spec: the score and which evaluation counts; None: the last, and no score.
        rows: of the run's ``metrics.jsonl``.
        last: metrics after the last update by part; empty for a diverged run.

    Returns:
        ``final`` (the metrics of the selected evaluation, its ``score`` among them),
        ``score_metric``, ``select``, ``aggregate``, ``last_score``, and ``best_score`` with
        ``best_step``.
    """
    if spec is None:
        return {"final": final(last)}
    names = {"score_metric": spec.metric, "select": spec.select}
    names["aggregate"] = spec.aggregate or "mean"
    if not last:
        return names | {"final": {}, "last_score": None, "best_score": None, "best_step": None}
    evaluations = [row for row in rows if row["split"] != "train"]
    sign = -1 if spec.metric in LESS_IS_BETTER else 1
    best = max(  # of equal ones the first
        (row for row in evaluations if row["split"] == MAIN),
        key=lambda row: sign * score(row, spec.metric),
    )
    chosen = last
    if spec.select == "best":
        chosen = {r["split"]: _metrics(r) for r in evaluations if r["step"] == best["step"]}
    return names | {
        "final": final(chosen) | {"score": score(chosen[MAIN], spec.metric)},
        "last_score": score(last[MAIN], spec.metric),
        "best_score": score(best, spec.metric),
        "best_step": best["step"],
    }


def score(metrics: Row, name: str) -> float:
    """One metric; the perplexity from the loss."""
    return float(perplexity(metrics["loss"]) if name == "perplexity" else metrics[name])


def perplexity(loss: float) -> float:
    """``exp(loss)``; infinite where that overflows."""
    return math.exp(loss) if loss < 700 else math.inf


def _metrics(row: Row) -> Metrics:
    """The metrics in a row of ``metrics.jsonl``."""
    return {key: row[key] for key in ("loss", *QUALITY) if row.get(key) is not None}
