"""One part of a method changed at a time, beside the method's own setting."""

from __future__ import annotations

import json
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from memopt import catalog

from . import compare, style
from .errors import FigureError

SAME = ["model", "data_id", "steps", "method", "lr"]
FAR = 10  # times the median difference: beyond it nothing near zero could be read
POINT = [*SAME, *compare.SEEDS]  # what a changed setting and the own one have in common


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """Runs of the studies ``ablation_...`` and, beside them, the method's own setting.

    The own setting is not trained again: it is the run of another study with the same model,
    method, rate, data, updates and seeds.

    Args:
        runs: final runs of runs.parquet.

    Returns:
        One row a run, the own setting first: columns of ``runs`` and ``varied`` (names of what is
        changed), ``setting`` (their values), ``difference`` of the held-out loss to the own
        setting's, ``spread`` (twice the standard deviation of the own setting over seeds; NaN for
        one seed).

    Raises:
        FigureError: a run without its counterpart.
    """
    chosen = runs.study.str.startswith(compare.ABLATION)
    changed, others = runs[chosen].copy(), runs[~chosen]
    own = others.drop_duplicates(POINT).set_index(POINT, drop=False)
    alone = changed[~changed.set_index(POINT).index.isin(own.index)]
    if not alone.empty:
        raise FigureError(f"ablations: {alone.run_id.iloc[0]} has no run of the own setting.")
    rows = []
    for run in changed.to_dict("records"):
        unvaried = own.loc[tuple(run[key] for key in POINT)].to_dict()
        before, after = _arguments(unvaried), _arguments(run)
        keys = [key for key, value in after.items() if before.get(key) != value]
        varied = {"varied": ", ".join(keys)}
        rows += [
            unvaried | varied | {"setting": f"{_values(before, keys)} (own)", "difference": 0.0},
            run
            | varied
            | {"setting": _values(after, keys)}
            | {"difference": run["final_validation_loss"] - unvaried["final_validation_loss"]},
        ]
    spread = 2 * others.groupby(SAME).final_validation_loss.std(ddof=1).rename("spread")
    both = pd.DataFrame(rows).drop_duplicates(["run_id", "varied"])
    both["_own"] = ~both.setting.str.endswith("(own)")
    both["_size"] = pd.to_numeric(both.setting, errors="coerce")
    order = ["method", "varied", "_own", "_size"]
    both = both.sort_values(order, kind="stable").drop(columns=["_own", "_size"])
    return both.join(spread, on=SAME)


def _arguments(run: dict[str, Any]) -> dict[str, Any]:
    """What an ablation may change: the method's arguments, micro-batches and the weights' dtype."""
    given = json.loads(run["method_args"]) | {"micro_batches": run["micro_batches"]}
    given |= {"dtype": json.loads(run["spec"])["train"].get("dtype", "float32")}
    return catalog.get(run["method"]).arguments() | given


def _values(arguments: dict[str, Any], keys: list[str]) -> str:
    return ", ".join(str(arguments[key]) for key in keys)


def panels(rows: pd.DataFrame) -> Figure:
    """Differences to the own setting, one panel a method; grey: within the spread of seeds.

    A difference above `FAR` times the median one is cut at the edge.

    Args:
        rows: what :func:`table` returns.
    """
    groups = list(rows.groupby("method", sort=False))
    lines = [_lines(group) for _, group in groups]
    heights = [len(names) + 1.7 for names in lines]
    fig, axes = plt.subplots(
        len(groups), 1, figsize=(6.4, 0.25 * sum(heights) + 0.3), squeeze=False, sharex=True,
        gridspec_kw={"height_ratios": heights},
    )  # fmt: skip
    sizes = rows.difference.abs()
    edge = FAR * sizes[sizes > 0].median()
    for axis, (method, group), named in zip(axes[:, 0], groups, lines, strict=True):
        _panel(axis, group, named, edge)
        axis.set_title(style.look(method).label)
    axes[-1, 0].set_xlabel(
        "Held-out loss minus the own setting's, same seed (nats a token); left is better"
    )
    return fig


def _lines(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each line of a panel by its name; the own setting is the first."""
    own = rows.setting.str.endswith("(own)")
    lines = {"own settings": rows[own].drop_duplicates("run_id")}
    for (varied, setting), changed in rows[~own].groupby(["varied", "setting"], sort=False):
        before = rows.setting[own & (rows.varied == varied)].iloc[0]
        seeds = f", {len(changed)} seeds" if len(changed) > 1 else ""
        pairs = zip(varied.replace("_", " ").split(", "), setting.split(", "), strict=True)
        name = ", ".join(f"{key} {value}" for key, value in pairs)
        lines[f"{name} (own: {before.removesuffix(' (own)')}{seeds})"] = changed
    return lines


def _panel(axis: Axes, rows: pd.DataFrame, named: dict[str, pd.DataFrame], edge: float) -> None:
    look = style.look(rows.method.iloc[0])
    axis.axvspan(-rows.spread.iloc[0], rows.spread.iloc[0], color=style.GRID, zorder=0)
    axis.axvline(0, color=style.MUTED, lw=1.0, zorder=1)
    for y, line in enumerate(named.values()):
        at = line.difference.clip(-edge, edge)
        axis.plot(at, [y] * len(line), look.marker, color=look.color, ls="none", ms=6)
        mean = line.difference.mean()
        text = f"{mean:+.3f}{' →' if mean > edge else ' ←' if mean < -edge else ''}"
        axis.annotate(
            text if np.isfinite(mean) else "diverged",
            (1.0, y), xycoords=axis.get_yaxis_transform(), xytext=(6, 0),
            textcoords="offset points", va="center", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    axis.set_yticks(range(len(named)), list(named))
    axis.set_ylim(len(named) - 0.4, -0.6)
    axis.grid(axis="y", visible=False)
