"""Statistics over seeds: means or medians with 95 % intervals, on the loss scale."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from . import style
from .errors import FigureError

CONFIDENCE = 0.95
SERIES = ["study", "model", "method", "label"]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % Student-t interval of independent runs.

    One value has no interval: the bounds are NaN, and nothing is drawn for them.

    Returns:
        ``(mean, low, high)`` in the unit of ``values``.
    """
    x = np.asarray(values, dtype=float)
    mean = float(x.mean())
    if len(x) < 2:
        return mean, float("nan"), float("nan")
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)))
    return mean, mean - half, mean + half


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 95 % interval by order statistics, which asks nothing of the distribution.

    The interval runs from the k-th lowest to the k-th highest value, with the largest k at which a
    fair coin shows fewer than k heads in n throws with at most 2.5 %. Below six values there is
    none: the bounds are NaN.
    """
    x = np.sort(np.asarray(values, dtype=float))
    median, k = float(np.median(x)), int(stats.binom.ppf((1 - CONFIDENCE) / 2, len(x), 0.5))
    if k < 1 or np.isnan(median):
        return median, float("nan"), float("nan")
    return median, float(x[k - 1]), float(x[-k])


def over_seeds(group: pd.DataFrame, values: pd.Series) -> tuple[float, float, float]:
    """Middle and interval by the rule of the runs' task: mean, unless their rows say ``median``.

    Args:
        group: rows of one line; ``aggregate`` where the tables have it.
        values: one a row.

    Raises:
        FigureError: the rows follow different rules.
    """
    rules = set(group["aggregate"].fillna("mean")) if "aggregate" in group else {"mean"}
    if len(rules) > 1:
        raise FigureError(f"{group.run_id.iloc[0]}: seeds of one line with rules {sorted(rules)}.")
    return median_interval(values) if rules == {"median"} else interval(values)


def require(table: pd.DataFrame, what: str, columns: Sequence[str]) -> pd.DataFrame:
    """Return ``table`` if it has rows and ``columns``; say what is missing otherwise.

    Raises:
        FigureError: no rows, or a column is absent.
    """
    missing = [c for c in columns if c not in table.columns]
    if missing:
        raise FigureError(f"{what}: no column {missing[0]!r}; it has {', '.join(table.columns)}.")
    if table.empty:
        raise FigureError(f"{what}: no rows. Run a suite that has them, then draw again.")
    return table


def with_labels(runs: pd.DataFrame) -> pd.DataFrame:
    """Add ``label``: the method's name, plus the arguments in which its runs differ.

    Within one study and model a method may run with several arguments or learning rates (an
    ablation); only what differs is named, so an ordinary comparison keeps bare names. The control
    (GWT at level 0) has a name of its own.
    """
    out = runs.copy()
    level = out.method_args.map(lambda arguments: json.loads(arguments).get("level"))
    control = (out.method == "gwt") & (level == 0)
    out["label"] = np.where(control, style.CONTROL, "")
    for (_, _, method), rows in out[~control].groupby(["study", "model", "method"], sort=False):
        settings = [json.loads(row.method_args) | {"lr": row.lr} for row in rows.itertuples()]
        keys = sorted({k for s in settings for k in s})
        differing = [k for k in keys if len({json.dumps(s.get(k)) for s in settings}) > 1]
        for index, setting in zip(rows.index, settings, strict=True):
            inside = ", ".join(f"{k} {setting[k]}" for k in differing if k in setting)
            name = style.look(str(method)).label
            out.loc[index, "label"] = f"{name} ({inside})" if inside else name
    return out


def curves(runs: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Held-out perplexity over training, one row a series and step.

    Means and intervals are taken over seeds on the loss (nats per token) and then exponentiated,
    so the intervals of the perplexity are not symmetric. Points that are not finite (a diverged
    run) are left out.

    Args:
        runs: rows of runs.parquet, with ``label``.
        metrics: rows of metrics.parquet.
    """
    held_out = metrics[(metrics.split == "validation") & np.isfinite(metrics.loss)]
    merged = held_out[["run_id", "step", "tokens", "loss"]].merge(
        runs[["run_id", *SERIES]], on="run_id", validate="many_to_one"
    )
    require(merged, "held-out losses of these runs (metrics.parquet)", ["loss"])
    rows = []
    for key, group in merged.groupby([*SERIES, "step"], sort=True):
        mean, low, high = interval(group.loss)
        rows.append(
            dict(zip([*SERIES, "step"], key, strict=True))
            | {"tokens": int(group.tokens.iloc[0]), "seeds": len(group)}
            | {"loss": mean, "loss_low": low, "loss_high": high}
            | {"perplexity": np.exp(mean), "low": np.exp(low), "high": np.exp(high)}
        )
    return in_order(pd.DataFrame(rows))


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Sort by study, model and the fixed order of methods; stable for the rest."""
    ranked = table.assign(_rank=[style.order(m) for m in table.method])
    keys = [k for k in ("study", "model") if k in table.columns] + ["_rank"]
    keys += [k for k in ("label", "step") if k in table.columns]
    return ranked.sort_values(keys, kind="stable").drop(columns="_rank").reset_index(drop=True)
