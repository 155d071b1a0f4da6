"""Figures of several tasks: one panel each, over training or beside memory."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from . import lines, style, tuned

MIB = 2**20
WIDE = 3  # panels in a row


def over_training(curves: pd.DataFrame, majority: pd.Series) -> Figure:
    """The score against optimizer steps.

    Args:
        curves: what ``tuned.curves`` returns.
        majority: accuracy of always answering the commonest class, indexed by (study, model); a
            dashed line where the score is the accuracy.
    """
    fig, panels = _panels(curves)
    for axis, (key, rows) in panels:
        lines.draw(axis, rows, "step", "score")
        metric = rows.score_metric.iloc[0]
        if metric == "accuracy" and np.isfinite(level := float(majority[key])):
            axis.axhline(level, color=style.MUTED, lw=1.0, ls=(0, (4, 3)), zorder=1)
            axis.annotate(
                "commonest class", (0.99, level), xycoords=axis.get_yaxis_transform(),
                xytext=(0, 2), textcoords="offset points", ha="right", va="bottom",
                color=style.MUTED, fontsize=8,
            )  # fmt: skip
        axis.set_xlabel("Optimizer steps")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.set_ylabel(_name(metric))
        if metric == "perplexity":
            lines.plain_log(axis)
    _legend(fig, curves)
    return fig


def beside_memory(table: pd.DataFrame) -> Figure:
    """The final score against the bytes that the optimizer keeps.

    Args:
        table: what ``tuned.scores`` returns.
    """
    fig, panels = _panels(table)
    for axis, (_, rows) in panels:
        for row in rows.itertuples():
            look = style.look(row.method)
            error = [[row.score - row.low], [row.high - row.score]]
            axis.errorbar(
                row.state_bytes_measured / MIB, row.score,
                yerr=error if np.isfinite(error).all() else None, color=look.color,
                marker=look.marker, markersize=7, markeredgecolor="white", markeredgewidth=0.6,
                elinewidth=1.2, capsize=2.5, linestyle="none", label=row.label,
            )  # fmt: skip
        _bytes_axis(axis, rows.state_bytes_measured.min() / MIB)
        axis.margins(y=0.12)
        axis.set_ylabel(_name(rows.score_metric.iloc[0]))
    _legend(fig, table)
    return fig


def _bytes_axis(axis: Axes, least: float) -> None:
    """Logarithmic; linear below 1 MiB where something is smaller (LOMO keeps nothing)."""
    axis.set_xlabel("Optimizer states (MiB, log scale)")
    if least >= 1:
        axis.set_xscale("log")
        axis.set_xlim(*(np.array(axis.get_xlim()) * [0.7, 1.4]))
        axis.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
        axis.xaxis.set_minor_formatter(NullFormatter())
    else:
        axis.set_xscale("symlog", linthresh=1)
        axis.set_xlim(left=-0.15)
        axis.set_xlabel("Optimizer states (MiB, log scale above 1)")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))


def _panels(table: pd.DataFrame) -> tuple[Figure, list[tuple[Axes, tuple[object, pd.DataFrame]]]]:
    groups = list(table.groupby(["study", "model"], sort=False))
    columns = min(WIDE, len(groups))
    height = -(-len(groups) // columns)
    fig, axes = plt.subplots(
        height, columns, figsize=(2.9 * columns + 1.9, 2.7 * height), squeeze=False
    )
    for axis in axes.flat[len(groups) :]:
        axis.remove()
    drawn = list(zip(axes.flat[: len(groups)], groups, strict=True))
    for axis, (key, rows) in drawn:
        axis.set_title(f"{rows.task.iloc[0]}\n{key[1]}, {key[0]}", fontsize=8.5)
    return fig, drawn


def _name(metric: str) -> str:
    return f"{tuned.METRICS[metric]}, held out"


def _legend(fig: Figure, table: pd.DataFrame) -> None:
    """One legend for all panels; each label once, in the order of methods."""
    handles = {}
    for axis in fig.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    order = {row.label: style.order(row.method) for row in table.itertuples()}
    named = sorted(handles, key=order.__getitem__)
    fig.legend([handles[n] for n in named], named, loc="outside right upper")
