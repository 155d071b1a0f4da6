"""Curves over training: one panel row a model, whole course beside the last half."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from . import style

OFF_SCALE = 1.5  # a line that ends above this many times the median is not in the enlargement
MARKERS_PER_LINE = 5
GAP_POINTS = 9.5  # distance of two end labels


def convergence(curves: pd.DataFrame, unigram: pd.Series) -> Figure:
    """Held-out perplexity against steps (whole course) and against tokens (last half).

    Args:
        curves: what ``stats.curves`` returns.
        unigram: perplexity of the unigram distribution, indexed by (study, model).
    """
    panels = list(curves.groupby(["study", "model"], sort=False))
    heights = [max(3.1, 0.16 * rows.label.nunique() + 0.9) for _, rows in panels]
    fig, axes = plt.subplots(
        len(panels),
        2,
        figsize=(8.2, sum(heights)),
        squeeze=False,
        gridspec_kw={"height_ratios": heights, "width_ratios": [1.0, 1.0]},
    )
    several = len(panels) > 1
    for (whole, late), (key, rows) in zip(axes, panels, strict=True):
        draw(whole, rows, "step")
        baseline(whole, float(unigram[key]))
        draw(late, last_half(rows), "tokens")
        enlarge(late, last_half(rows))
        name = f"{key[1]}, {key[0]}: " if several else ""
        whole.set_title(f"{name}whole run")
        late.set_title(f"{name}last half, enlarged")
        whole.set_xlabel("Optimizer steps")
        whole.set_ylabel("Held-out perplexity (log scale)")
        late.set_xlabel("Training tokens seen (millions)")
        late.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1e6:g}"))
        for axis in (whole, late):
            plain_log(axis)
    fig.draw_without_rendering()  # constrained layout: heights are final after it
    for late, (_, rows) in zip(axes[:, 1], panels, strict=True):
        label_ends(late, last_half(rows))
    return fig


def last_half(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the second half of the steps."""
    return rows[rows.step >= rows.step.max() / 2]


def draw(axis: Axes, rows: pd.DataFrame, x: str, y: str = "perplexity") -> None:
    """One line a series, with its interval over seeds (``low`` to ``high``) where there is one.

    A line far above the others has none: its band would lie over theirs.
    """
    series = list(rows.groupby("label", sort=False))
    for index, (label, line) in enumerate(series):
        look = style.look(line.method.iloc[0], str(label))
        every = max(1, len(line) // MARKERS_PER_LINE)
        axis.plot(
            line[x],
            line[y],
            color=look.color,
            linestyle=look.dash,
            marker=look.marker,
            markevery=(index * every // len(series), every),  # staggered: equal curves stay visible
            markeredgecolor="white",
            markeredgewidth=0.6,
            label=label,
        )
        if line.low.notna().any() and label not in off_scale(rows):
            axis.fill_between(line[x], line.low, line.high, color=look.color, alpha=0.12, lw=0)


def off_scale(rows: pd.DataFrame) -> set[str]:
    """Lines of perplexity that end far above the others; none of other scores."""
    if "perplexity" not in rows:
        return set()
    ends = rows.groupby("label").perplexity.last()
    return set(ends.index[ends > OFF_SCALE * ends.median()])


def baseline(axis: Axes, perplexity: float) -> None:
    """A dashed reference: what knowing the words' frequencies alone gives."""
    axis.axhline(perplexity, color=style.MUTED, lw=1.0, ls=(0, (4, 3)), zorder=1)
    axis.annotate(
        f"unigram baseline {style.digits(perplexity, 4)}",
        (1.0, perplexity),
        xycoords=axis.get_yaxis_transform(),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        va="bottom",
        color=style.MUTED,
        fontsize=8,
    )


def enlarge(axis: Axes, rows: pd.DataFrame) -> None:
    """Fit the y axis to the lines that end near the others; one far above leaves the picture."""
    inside = rows.perplexity[~rows.label.isin(off_scale(rows))]
    margin = max(1.02, (inside.max() / inside.min()) ** 0.08)
    axis.set_yscale("log")
    axis.set_ylim(inside.min() / margin, inside.max() * margin)


def label_ends(axis: Axes, rows: pd.DataFrame) -> None:
    """Name each line at its right end; a line above the picture is named at the top edge."""
    ends = rows.groupby("label", sort=False).last().sort_values("perplexity")
    top = axis.get_ylim()[1]
    to_points = 72 / axis.figure.dpi
    wanted = axis.transData.transform([(0, min(v, top)) for v in ends.perplexity])[:, 1] * to_points
    shifts = spread_out(wanted) - wanted
    for shift, (label, end) in zip(shifts, ends.iterrows(), strict=True):
        above = end.perplexity > top
        color = style.look(end.method, str(label)).color
        line = {"arrowstyle": "-", "color": color, "lw": 0.7, "shrinkA": 1, "shrinkB": 1}
        axis.annotate(
            f"{label}  {style.digits(end.perplexity, 4)}{' ↑' if above else ''}",
            (1.0, min(end.perplexity, top)),
            xycoords=axis.get_yaxis_transform(),
            xytext=(14, shift),
            textcoords="offset points",
            va="center",
            color=style.readable(color),
            fontsize=8,
            annotation_clip=False,
            arrowprops=None if above else line | {"relpos": (0, 0.5)},
        )


def spread_out(places: np.ndarray, gap: float = GAP_POINTS) -> np.ndarray:
    """Move sorted positions apart to at least ``gap``, each as little as possible.

    Neighbours that collide form a block which is centred on its members' wishes; blocks merge
    until none overlap.
    """
    blocks: list[list[float]] = []  # wishes of the members of each block, minus their rank * gap
    for place in places:
        blocks.append([float(place)])
        while len(blocks) > 1 and _end(blocks[-2], gap) > _start(blocks[-1], gap) - gap:
            last = blocks.pop()
            blocks[-1] += last
    return np.concatenate([_start(b, gap) + gap * np.arange(len(b)) for b in blocks])


def _start(block: list[float], gap: float) -> float:
    return float(np.mean(block)) - gap * (len(block) - 1) / 2


def _end(block: list[float], gap: float) -> float:
    return float(np.mean(block)) + gap * (len(block) - 1) / 2


def plain_log(axis: Axes) -> None:
    """A logarithmic y axis with numbers as people write them (50, 100, 200)."""
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    if high / low < 4:  # too short for decades: round numbers instead
        axis.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    else:
        axis.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())
