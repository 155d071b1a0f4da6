"""Bars of bytes: optimizer states of real runs, and the memory of full-size models."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from . import style

MIB, GIB = 2**20, 2**30
PRINTED_MARKERS = {
    "GaLore": "o", "SCALE": "D", "GWT": "s", "COAP": "^", "LOMO": "X", "APOLLO": "v", "Fira": "P",
    "AdaLomo": "*", "AdamA": "h",
}  # fmt: skip


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
        figsize=(6.6, 0.27 * sum(counts) + 1.0 * len(panels) + 0.1),
        squeeze=False,
        gridspec_kw={"height_ratios": [c + 0.8 for c in counts]},
    )
    for axis, (model, bars) in zip(axes[:, 0], panels, strict=True):
        whole = bars.measured.max()
        for y, bar in enumerate(bars.itertuples()):
            look = style.look(bar.method, bar.label)
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
        axis.set_xlabel("Optimizer states (MiB); in brackets: share of the largest")
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
    """Memory of full-size models in stacked bars, papers' printed values as open marks.

    Behind a bar: weights + optimizer states, what papers print, then ``+`` the hatched gradients
    that live at once.

    Args:
        rows: what ``printed.full_size`` returns.
        printed: what ``printed.marks`` returns; may be empty.
    """
    panels = list(rows.groupby("name", sort=False))
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    height = 0.23 * rows.groupby("name").size().max() + 0.85
    fig, axes = plt.subplots(
        lines, columns, figsize=(9.2, lines * height + 0.5), squeeze=False, sharey=True
    )
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    for axis, (name, bars) in zip(axes.flat[: len(panels)], panels, strict=True):
        for y, bar in enumerate(bars.itertuples()):
            theirs = printed[(printed.model == bar.model) & (printed.method == bar.method)]
            _stack(axis, y, bar)
            _printed_marks(axis, y, theirs)
        _named_rows(axis, bars.label)
        axis.set_xlim(
            0,
            bars[["weights", "states", "projections", "gradients"]].sum(axis=1).max() / GIB * 1.5,
        )
        axis.set_title(name)
        axis.set_xlabel("GiB: weights and states + gradients")
    fig.legend(handles=_legend(printed), loc="outside upper left", ncols=5, columnspacing=1.4)
    return fig


def _stack(axis: Axes, y: int, bar: Any) -> None:
    color = style.look(bar.method).color
    kept = (bar.weights + bar.states + bar.projections) / GIB
    parts = [
        (bar.weights, style.WEIGHTS, 1.0),
        (bar.states, color, 1.0),
        (bar.projections, color, 0.55),
    ]
    left = 0.0
    for part, shade, alpha in parts:
        axis.barh(y, part / GIB, left=left, height=0.62, color=shade, alpha=alpha, lw=0)
        left += part / GIB
    axis.barh(
        y, bar.gradients / GIB, left=kept, height=0.62, color="white", hatch="//////",
        edgecolor=style.WEIGHTS, lw=0,
    )  # fmt: skip
    axis.annotate(
        f"{style.digits(kept, 3)} + {style.digits(bar.gradients / GIB, 2)}",
        (kept + bar.gradients / GIB, y),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=7.5,
    )


def _printed_marks(axis: Axes, y: int, theirs: pd.DataFrame) -> None:
    for rank, mark in enumerate(theirs.itertuples()):
        beside = 0.36 * (rank - (len(theirs) - 1) / 2)  # equal values stay visible
        axis.plot(mark.bytes / GIB, y + beside, **_mark(mark.source))


def _mark(source: str) -> dict[str, Any]:
    return {
        "marker": PRINTED_MARKERS[source.removesuffix(" (inferred)")],
        "markersize": 5,
        "markerfacecolor": "white",
        "markeredgecolor": style.INK,
        "markeredgewidth": 1.1,
        "linestyle": "none",
    }


def _legend(printed: pd.DataFrame) -> list[Patch | Line2D]:
    handles: list[Patch | Line2D] = [
        Patch(color=style.WEIGHTS, label="weights"),
        Patch(color=style.MUTED, label="states (method's colour)"),
        Patch(color=style.MUTED, alpha=0.55, lw=0, label="projections"),
        Patch(fc="white", ec=style.WEIGHTS, hatch="//////", lw=0, label="gradients alive at once"),
    ]
    verb = {True: "computed from", False: "printed by"}
    for source in dict.fromkeys(printed.source):
        inferred = source.endswith(" (inferred)")
        paper = source.removesuffix(" (inferred)")
        label = f"{verb[inferred]} {paper}{chr(39) + 's settings' if inferred else ''}"
        handles.append(Line2D([], [], label=label, **_mark(source)))
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
            return f"{style.digits(count / size, 3)} {unit}"
    return f"{count:.0f} B"
