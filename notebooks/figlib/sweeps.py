"""Learning-rate sweeps: one small panel a method."""

from __future__ import annotations

from math import ceil

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import lines, stats, style

PANELS_A_ROW = 4


def sensitivity(runs: pd.DataFrame) -> pd.DataFrame:
    """Held-out loss at the end of training for each method and learning rate.

    Args:
        runs: rows of runs.parquet of studies that tune.

    Returns:
        One row a method and rate: ``perplexity`` (of the mean loss over seeds; NaN where a seed
        diverged), ``diverged`` (number of seeds), ``chosen`` (the lowest of the method) and
        ``at_edge`` (the chosen rate is the lowest or highest tried).
    """
    keys = ["study", "model", "method"]
    table = (
        runs.groupby([*keys, "lr"])
        .agg(
            loss=("final_validation_loss", lambda losses: losses.mean(skipna=False)),
            diverged=("diverged", "sum"),
            seeds=("run_id", "size"),
            steps=("steps", "max"),
        )
        .reset_index()
    )
    table.loc[table.diverged > 0, "loss"] = np.nan
    table["perplexity"] = np.exp(table.loss)
    rates = table.groupby(keys).lr
    at_edge = (table.lr == rates.transform("min")) | (table.lr == rates.transform("max"))
    table["chosen"] = table.loss == table.groupby(keys).loss.transform("min")
    table["at_edge"] = table.chosen & at_edge
    return stats.in_order(table.assign(label=[style.look(m).label for m in table.method]))


def panels(table: pd.DataFrame, unigram: float) -> Figure:
    """Perplexity or loss against learning rate, one panel a method, all with the same height.

    Args:
        table: of one study and model, what :func:`sensitivity` returns.
        unigram: perplexity of the unigram distribution; NaN where no language model was
            pretrained: then the loss is drawn.
    """
    value = "loss" if np.isnan(unigram) else "perplexity"
    groups = list(table.groupby("label", sort=False))
    columns = min(PANELS_A_ROW, len(groups))
    rows = ceil(len(groups) / columns)
    size = (8.2 * max(columns, 2) / PANELS_A_ROW, 1.9 * rows + 0.4)
    fig, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, sharey=True)
    for axis in axes.flat[len(groups) :]:
        axis.set_axis_off()
    for axis, (label, rows_) in zip(axes.flat, groups, strict=False):
        _panel(axis, rows_, value)
        axis.set_title(label)
    finite = table[value].dropna()
    low, high = finite.min(), np.nanmax([finite.max(), unigram])
    room = (high / low) ** 0.25  # below for the numbers, above for the crosses
    axes[0, 0].set_ylim(low / room, high * room)
    if value == "perplexity":
        _baseline(list(axes.flat[: len(groups)]), unigram)
    for axis in axes[:, 0]:
        axis.set_ylabel(f"Held-out {value}")
    for index, axis in enumerate(axes.flat[: len(groups)]):
        if index + columns >= len(groups):
            axis.set_xlabel("Peak learning rate")
    lines.plain_log(axes[0, 0])
    return fig


def _baseline(axes: list[Axes], unigram: float) -> None:
    """A line in every panel, named in the first."""
    for axis in axes:
        axis.axhline(unigram, color=style.MUTED, lw=1.0, ls=(0, (4, 3)), zorder=1)
    axes[0].annotate(
        "unigram baseline",
        (0.02, unigram),
        xycoords=axes[0].get_yaxis_transform(),
        xytext=(0, 2),
        textcoords="offset points",
        color=style.MUTED,
        fontsize=7.5,
    )


def _panel(axis: Axes, rows: pd.DataFrame, value: str) -> None:
    look = style.look(rows.method.iloc[0])
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.plot(rows.lr, rows[value], color=look.color, marker=look.marker, markerfacecolor="white")
    best = rows[rows.chosen]
    axis.plot(best.lr, best[value], look.marker, color=look.color, ls="none")
    for row in best.itertuples():
        height = getattr(row, value)
        axis.annotate(
            f"{style.digits(height, 3)}{' (edge)' if row.at_edge else ''}",
            (row.lr, height),
            xytext=(0, -11),
            textcoords="offset points",
            ha="center",
            color=style.readable(look.color),
            fontsize=8,
        )
    lost = rows[rows[value].isna()]
    axis.plot(
        lost.lr,
        np.full(len(lost), 0.93),
        "x",
        color=style.INK,
        transform=axis.get_xaxis_transform(),
        ls="none",
    )
    axis.set_xticks(list(rows.lr), [f"{lr:g}" for lr in rows.lr], rotation=35, ha="right")
    axis.minorticks_off()
    axis.margins(x=0.18)
