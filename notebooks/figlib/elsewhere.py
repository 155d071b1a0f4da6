"""Whether the order of methods holds under other conditions: another size, another text."""

from __future__ import annotations

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from . import compare, stats, style

LIMIT = 0.75  # nats above AdamW: what is worse stands at the edge
MAIN = ("o", style.INK, -0.24)  # marker, colour and place below the line's middle
LOOKS = (("^", "#C8553D", -0.08), ("s", "#2460C8", 0.08), ("D", "#2A9D70", 0.24))


def better_rate(runs: pd.DataFrame, study: str) -> pd.DataFrame:
    """Of the runs of one line and seed with several rates, the one that ends lowest.

    Args:
        runs: final runs of runs.parquet, with ``label``.
        study: the name that they get.
    """
    line = ["model", "label", *compare.SEEDS]
    ranked = runs.sort_values("final_validation_loss", na_position="last", kind="stable")
    return ranked.drop_duplicates(line).assign(study=study)


def beside(main: pd.DataFrame, others: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Differences to AdamW in the main study and under other conditions.

    Args:
        main: final runs of the main study, with ``label``.
        others: by condition, final runs of one study with AdamW among them.

    Returns:
        One row a condition and line that both have: ``condition``, ``method``, ``label``,
        ``difference`` with ``low`` and ``high`` of the main study, ``there`` with ``there_low``,
        ``there_high`` and ``there_seeds``.
    """
    kept = ["label", "method", "difference", "low", "high"]
    here = compare.against(main)[kept]
    rows = []
    for condition, runs in others.items():
        there = compare.against(runs)[["label", "difference", "low", "high", "seeds"]]
        there.columns = ["label", "there", "there_low", "there_high", "there_seeds"]
        rows.append(here.merge(there, on="label").assign(condition=condition))
    table = pd.concat(rows, ignore_index=True)
    return table[table.method != "adamw"].reset_index(drop=True)


def agreement(main: pd.DataFrame, others: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """How much of the main study's order is found again.

    Returns:
        One row a condition: ``lines`` in both (AdamW counted), Spearman's rank correlation of
        their mean losses, and of the pairs of lines whose paired 95 % interval in the main study
        leaves out zero (``decided``), how many have the same sign there (``kept``).
    """
    here = _losses(main)
    rows = []
    for condition, runs in others.items():
        there = _losses(runs)
        both = sorted(set(here) & set(there))
        ranks = spearmanr(here[both].mean(), there[both].mean()).statistic
        decided = kept = 0
        for one, other in combinations(both, 2):
            mean, low, high = stats.interval((here[one] - here[other]).dropna())
            if low > 0 or high < 0:
                decided += 1
                kept += bool(np.sign(there[one].mean() - there[other].mean()) == np.sign(mean))
        rows.append((condition, len(both), float(ranks), decided, kept))
    return pd.DataFrame(rows, columns=["condition", "lines", "spearman", "decided", "kept"])


def _losses(runs: pd.DataFrame) -> pd.DataFrame:
    """Held-out losses, a row a seed and a column a line."""
    return runs.pivot(index=compare.SEEDS, columns="label", values="final_validation_loss")


def dots(main: pd.DataFrame, table: pd.DataFrame, found: pd.DataFrame) -> Figure:
    """Difference to AdamW of each line in the main study and under each condition.

    Args:
        main: of the main study, what :func:`compare.against` returns, without AdamW.
        table: what :func:`beside` returns.
        found: what :func:`agreement` returns.
    """
    fig, axis = plt.subplots(figsize=(7.4, 0.27 * len(main) + 1.5))
    places = {label: y for y, label in enumerate(main.label)}
    axis.axvline(0, color=style.MUTED, lw=1.0, zorder=1)
    _marks(axis, main, places, ("difference", "low", "high"), "Main study", MAIN)
    ranks = found.set_index("condition").spearman
    for look, (condition, rows) in zip(LOOKS, table.groupby("condition", sort=False), strict=False):
        name = f"{condition}: rank correlation {ranks[condition]:.2f}"
        _marks(axis, rows, places, ("there", "there_low", "there_high"), name, look)
    axis.set_yticks(range(len(places)), list(places))
    axis.set_ylim(len(places) - 0.4, -0.6)
    axis.set_xlim(right=1.04 * LIMIT)
    axis.set_xlabel(f"Held-out loss minus AdamW's there (nats a token; cut at {LIMIT})")
    fig.legend(loc="outside upper center", ncols=2)
    return fig


def _marks(
    axis: Axes,
    rows: pd.DataFrame,
    places: dict[str, int],
    columns: tuple[str, str, str],
    name: str,
    look: tuple[str, str, float],
) -> None:
    marker, color, shift = look
    value, low, high = columns
    y = rows.label.map(places) + shift
    inside = rows[high].notna() & (rows[value] < LIMIT)
    axis.hlines(
        y[inside], rows[low][inside], rows[high][inside].clip(upper=LIMIT), color=color, lw=1.1,
        alpha=0.7,
    )  # fmt: skip
    for beyond in rows[rows[value] > LIMIT].itertuples():
        axis.annotate(
            f"{getattr(beyond, value):+.2f} →", (LIMIT, y[beyond.Index]), xytext=(-6, 0),
            textcoords="offset points", ha="right", va="center", fontsize=7.5, color=color,
        )  # fmt: skip
    axis.plot(
        rows[value].clip(upper=LIMIT), y, marker, color=color, ls="none", ms=6, label=name,
        markeredgecolor="white", markeredgewidth=0.5,
    )  # fmt: skip
