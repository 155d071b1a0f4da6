"""Methods beside a reference: paired differences, and quality against bytes."""

from __future__ import annotations

from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from . import lines, stats, style
from .errors import FigureError
from .rows import KEYS

MARGIN = 0.01  # nats a token that docs/study.md calls equal: one per cent of perplexity
SEEDS = ["seeds_weights", "seeds_data"]
PAIR = ["study", "model", *SEEDS]
ABLATION = "ablation_"  # studies that vary one method
CONTROL = "ablation_two_rates"
LIKE = ["model", "data_id", "steps", "micro_batches"]


class Price(NamedTuple):
    """What a method costs: a column of a table, the name of its axis, where that turns to a log."""

    column: str
    label: str
    linear: float | None = None


BYTES = Price("bytes_per_weight", "Bytes of optimizer state per weight of the model")
TIME = Price("extra_time", "Time of an update beyond AdamW's (%; log scale above 10)", linear=10)


def comparisons(runs: pd.DataFrame) -> pd.DataFrame:
    """Final runs that compare methods: neither those that tune nor those that vary one method.

    The control is one that varies a method (GWT at level 0 is Adam with GWT's two rates), and
    belongs beside the methods all the same: it gets the study with its model, data and length.
    """
    methods = runs[~runs.tuning & ~runs.study.str.startswith(ABLATION)]
    control = runs[~runs.tuning & (runs.study == CONTROL)]
    if control.empty:
        return methods
    study = methods.drop_duplicates(LIKE).set_index(LIKE).study.rename("beside")
    control = control.join(study, on=LIKE, how="inner")
    return pd.concat([methods, control.assign(study=control.beside).drop(columns="beside")])


def against(runs: pd.DataFrame, reference: str = "adamw") -> pd.DataFrame:
    """Loss of each method minus the reference's, paired by seed.

    Runs with the same seed start from the same weights and see the same documents in the same
    order, so the difference is free of what both share. A diverged run has no loss and makes its
    method's difference NaN.

    Args:
        runs: final runs of runs.parquet, with ``label``.
        reference: catalog name; it must be there for each seed of each study and model.

    Returns:
        One row a line, best first within study and model: ``loss``, ``difference`` with ``low`` and
        ``high`` (95 % Student interval; NaN for one seed), ``perplexity``, ``bytes_per_weight`` of
        optimizer state, ``seeds``, ``diverged`` and ``reading`` (see :func:`reading`).

    Raises:
        FigureError: a seed without the reference.
    """
    base = runs[runs.method == reference]
    if base.duplicated(PAIR).any():
        raise FigureError(f"compare: {reference} ran more than once with one seed; choose one.")
    base = base.set_index(PAIR).final_validation_loss.rename("base")
    paired = runs.join(base, on=PAIR)
    alone = paired[~paired.set_index(PAIR).index.isin(base.index)]
    if not alone.empty:
        raise FigureError(
            f"compare: {alone.run_id.iloc[0]} has no run of {reference} with its seed beside it."
        )
    paired["difference"] = paired.final_validation_loss - paired.base
    rows = []
    for key, group in paired.groupby(KEYS, sort=False):
        mean, low, high = stats.interval(group.difference)
        loss = group.final_validation_loss.mean(skipna=False)
        rows.append(
            dict(zip(KEYS, key, strict=True))
            | {"loss": loss, "perplexity": np.exp(loss), "lr": group.lr.iloc[0]}
            | {"difference": mean, "low": low, "high": high}
            | {"reading": "reference" if key[2] == reference else reading(mean, low, high)}
            | {"state_bytes_measured": group.state_bytes_measured.max()}
            | {"bytes_per_weight": group.state_bytes_measured.max() / group.parameters.max()}
            | {"seeds": len(group), "diverged": int(group.diverged.sum())}
        )
    order = ["study", "model", "difference"]  # paired: seeds may differ in number
    return pd.DataFrame(rows).sort_values(order, kind="stable", ignore_index=True)


def elsewhere(runs: pd.DataFrame, table: pd.DataFrame, reference: str = "adamw") -> pd.DataFrame:
    """Each method on the documents of another source, paired with the reference as in `against`.

    Args:
        runs: final runs of runs.parquet, with ``label``.
        table: ``elsewhere.parquet``; runs that are not in it, and seeds for which the reference is
            not, are left out.
        reference: catalog name.

    Returns:
        One row a line: the keys of a line, ``elsewhere_loss``, ``elsewhere_difference``, ``_low``,
        ``_high`` and ``_seeds``.
    """
    asked = runs.assign(final_validation_loss=runs.run_id.map(table.set_index("run_id").loss))
    asked = asked[asked.run_id.isin(table.run_id)]
    pairs = asked[asked.method == reference].set_index(PAIR).index
    asked = asked[asked.set_index(PAIR).index.isin(pairs)]
    kept = ["loss", "difference", "low", "high", "seeds"]
    found = against(asked, reference) if len(asked) else pd.DataFrame(columns=[*KEYS, *kept])
    return found[[*KEYS, *kept]].rename(columns={name: f"elsewhere_{name}" for name in kept})


def reading(difference: float, low: float, high: float) -> str:
    """What an interval of a difference says, by the rule of docs/study.md."""
    if np.isnan(difference):
        return "diverged"
    if np.isnan(low):
        return "one seed"
    if high < 0:
        return "better"
    if low >= -MARGIN and high <= MARGIN:
        return "equal"
    return "worse" if low > 0 else "cannot say"


def forest(table: pd.DataFrame, reference: str) -> Figure:
    """Differences to the reference with their intervals, best on top.

    Differences above five times the median of the positive ones are cut at the edge and named.

    Args:
        table: of one study and model, what :func:`against` returns, without the reference.
        reference: its label.
    """
    fig, axis = plt.subplots(figsize=(6.6, 0.24 * len(table) + 0.9))
    positive = table.difference[table.difference > 0]
    edge = max(5 * positive.median() if len(positive) else 0.0, 5 * MARGIN)
    edge = min(edge, 1.05 * np.nanmax([table.high.max(), table.difference.max(), 2 * MARGIN]))
    axis.axvspan(-MARGIN, MARGIN, color=style.GRID, zorder=0)
    axis.axvline(0, color=style.MUTED, lw=1.0, zorder=1)
    for y, row in enumerate(table.itertuples()):
        look = style.look(row.method, row.label)
        at = min(row.difference, edge)
        if at < edge and not np.isnan(row.low):
            axis.plot([row.low, min(row.high, edge)], [y, y], color=look.color, lw=1.8)
        axis.plot(at, y, look.marker, color=look.color, markeredgecolor="white", ms=6)
        beyond = " →" if at == edge else ""
        axis.annotate(
            f"{row.difference:+.3f}{beyond}",
            (1.0, y),
            xycoords=axis.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style.readable(look.color),
            annotation_clip=False,
        )
    axis.set_yticks(range(len(table)), table.label)
    axis.set_ylim(len(table) - 0.4, -0.6)
    low = np.nanmin([table.low.min(), table.difference.min(), -MARGIN])
    axis.set_xlim(low - 0.06 * (edge - low), edge * 1.03)
    axis.set_xlabel(f"Held-out loss minus {reference}'s, same seed (nats a token); left is better")
    axis.grid(axis="y", visible=False)
    return fig


def pareto(table: pd.DataFrame, price: Price = BYTES) -> Figure:
    """Perplexity against a price; the front is drawn as steps.

    Args:
        table: of one study and model, what :func:`against` returns, with the price's column.
        price: what is to be paid.
    """
    fig, axis = plt.subplots(figsize=(7.4, 4.6))
    shown = table.dropna(subset=["perplexity", price.column])
    top = lines.OFF_SCALE * shown.perplexity.median()
    inside = shown[shown.perplexity <= top]
    front = front_of(shown, price.column)
    axis.plot(
        front[price.column], front.perplexity, color=style.MUTED, lw=1.0, ls=(0, (4, 3)),
        drawstyle="steps-post", zorder=1,
    )  # fmt: skip
    axis.set_ylim(inside.perplexity.min() / 1.03, inside.perplexity.max() * 1.05)
    lines.plain_log(axis)
    low, high = min(0.0, shown[price.column].min()), shown[price.column].max()
    if price.linear:
        axis.set_xscale("symlog", linthresh=price.linear, linscale=1.5)
        axis.set_xticks([x for x in (0, 2, 4, 6, 8, 10, 20, 50, 100, 200) if x <= high])
    least = min(high, price.linear or high) - low
    axis.set_xlim(low - 0.03 * least, high + 0.04 * (high - low))
    fig.draw_without_rendering()
    named_points(axis, shown.sort_values("perplexity"), "perplexity", price.column)
    axis.set_xlabel(price.label)
    axis.set_ylabel("Held-out perplexity (log scale)")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    return fig


def front_of(table: pd.DataFrame, price: str = "bytes_per_weight") -> pd.DataFrame:
    """Rows that no other row beats in both price and perplexity, by price."""
    ordered = table.sort_values([price, "perplexity"], kind="stable")
    best = ordered.perplexity.cummin()
    return ordered[(ordered.perplexity <= best) & ~best.duplicated()]


def named_points(
    axis: Axes, points: pd.DataFrame, value: str, price: str = "bytes_per_weight"
) -> None:
    """A marker a method, named at the right edge at its height with a line to it.

    Args:
        axis: with its limits set.
        points: by ``value``; ``method``, ``label`` and the price beside it.
        value: column of the heights; what lies above the axis is drawn at its top.
        price: column of the places along the other axis.
    """
    top = axis.get_ylim()[1]
    to_points = 72 / axis.figure.dpi
    heights = [min(v, top) for v in points[value]]
    wanted = axis.transData.transform([(0, v) for v in heights])[:, 1] * to_points
    shifts = lines.spread_out(wanted) - wanted
    right = axis.get_xlim()[1]
    for shift, height, row in zip(shifts, heights, points.itertuples(), strict=True):
        look, number = style.look(row.method, row.label), getattr(row, value)
        at = getattr(row, price)
        above = number > top
        axis.plot(
            at, height, look.marker, color=look.color, ms=7,
            markeredgecolor="white", clip_on=False, zorder=3,
        )  # fmt: skip
        axis.annotate(
            f"{row.label}  {style.digits(number, 4)}{' ↑' if above else ''}",
            (right, height),
            xytext=(16, shift),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style.readable(look.color),
            annotation_clip=False,
        )
        axis.annotate(
            "",
            (at, height),
            xytext=(right, height),
            arrowprops={"arrowstyle": "-", "color": look.color, "lw": 0.4, "alpha": 0.6},
        )
        axis.annotate(
            "", (right, height), xytext=(14, shift), textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": look.color, "lw": 0.7}, annotation_clip=False,
        )  # fmt: skip
