"""Bars of bytes: optimizer states of real runs, and the memory of full-size models."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from . import style

MIB, GIB = 2**20, 2**30
PRINTED_MARKERS = {"GaLore": "o", "GWT": "s", "COAP": "^", "LOMO": "X"}


def states(rows: pd.DataFrame) -> Figure:
    """Measured optimizer states as bars, the prediction as a line across each.

    Args:
        rows: one row a (model, label): ``method``, ``measured`` and ``predicted`` in bytes.
    """
    panels = list(rows.groupby("model", sort=False))
    counts = [len(bars) for _, bars in panels]
    fig, axes = plt.subplots(
        len(panels),
        1,
        figsize=(6.6, 0.27 * sum(counts) + 0.75 * len(panels) + 0.35),
        squeeze=False,
        gridspec_kw={"height_ratios": [c + 0.8 for c in counts]},
    )
    for axis, (model, bars) in zip(axes[:, 0], panels, strict=True):
        whole = bars.measured.max()
        for y, bar in enumerate(bars.itertuples()):
            look = style.look(bar.method)
            axis.barh(y, bar.measured / MIB, height=0.62, color=look.color, lw=0)
            tick = [bar.predicted / MIB] * 2
            axis.plot(tick, [y - 0.42, y + 0.42], color="white", lw=3.6, solid_capstyle="butt")
            axis.plot(tick, [y - 0.42, y + 0.42], color=style.INK, lw=1.6, solid_capstyle="butt")
            end = max(bar.measured, bar.predicted) / MIB
            text = f"{amount(bar.measured)}  ({bar.measured / whole:.0%})" if whole else "0 B"
            axis.annotate(
                text, (end, y), xytext=(5, 0), textcoords="offset points", va="center", fontsize=8
            )
        _named_rows(axis, bars.label)
        axis.set_xlim(0, max(whole, bars.predicted.max(), 1) / MIB * 1.24)
        axis.set_title(f"{model} ({bars.parameters.iloc[0] / 1e6:.3g} M weights)")
    axes[-1, 0].set_xlabel("Optimizer states (MiB); in brackets: share of the largest")
    fig.legend(
        handles=[
            Patch(color=style.WEIGHTS, label="measured on the live optimizer"),
            Line2D([], [], color=style.INK, lw=1.6, label="predicted by formula"),
        ],
        loc="outside upper right",
        ncols=2,
    )
    return fig


def models(rows: pd.DataFrame, printed: pd.DataFrame) -> Figure:
    """Weights and optimizer states of full-size models, printed values as open marks.

    Args:
        rows: one row a (model, label), ``method``, ``weights`` and ``states`` in bytes.
        printed: papers' totals (weights + states): model, label, source, bytes; may be empty.
    """
    panels = list(rows.groupby("model", sort=False))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    height = 0.23 * rows.groupby("model").size().max() + 0.85
    fig, axes = plt.subplots(
        lines, columns, figsize=(8.6, lines * height + 0.5), squeeze=False, sharey=True
    )
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (model, bars) in zip(axes.flat[: len(panels)], panels, strict=True):
        ends = (bars.weights + bars.states) / GIB
        for y, bar in enumerate(bars.itertuples()):
            look = style.look(bar.method)
            axis.barh(y, bar.weights / GIB, height=0.62, color=style.WEIGHTS, lw=0)
            axis.barh(
                y, bar.states / GIB, left=bar.weights / GIB, height=0.62, color=look.color, lw=0
            )
            theirs = printed[(printed.model == model) & (printed.label == bar.label)]
            _printed_marks(axis, y, theirs)
            right = max([ends.iloc[y], *(theirs.bytes / GIB)])
            axis.annotate(
                f"{ends.iloc[y]:.3g}",
                (right, y),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
        _named_rows(axis, bars.label)
        highest = max([ends.max(), *(printed[printed.model == model].bytes / GIB)])
        axis.set_xlim(0, highest * 1.18)
        axis.set_title(model)
        axis.set_xlabel("GiB")
    fig.legend(handles=_legend(printed), loc="outside upper right", ncols=6)
    return fig


def _printed_marks(axis: Axes, y: int, theirs: pd.DataFrame) -> None:
    for mark in theirs.itertuples():
        axis.plot(
            mark.bytes / GIB,
            y,
            marker=PRINTED_MARKERS[mark.source],
            markersize=5,
            markerfacecolor="white",
            markeredgecolor=style.INK,
            markeredgewidth=1.1,
            linestyle="none",
            clip_on=False,
        )


def _legend(printed: pd.DataFrame) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(color=style.WEIGHTS, label="weights"),
        Patch(color=style.MUTED, label="+ optimizer states (method's colour)"),
    ]
    for source in sorted(set(printed.source)):
        handles.append(
            Line2D(
                [],
                [],
                marker=PRINTED_MARKERS[source],
                ls="none",
                markerfacecolor="white",
                markeredgecolor=style.INK,
                label=f"printed by {source}",
            )
        )
    return handles


def _named_rows(axis: Axes, labels: pd.Series) -> None:
    axis.set_yticks(range(len(labels)), labels)
    axis.set_ylim(len(labels) - 0.5, -0.6)  # first method on top
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(False, axis="y")


def amount(count: float) -> str:
    """A number of bytes in the unit that suits it."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
