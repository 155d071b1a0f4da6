"""AdamA over N micro-batches: curves, distance to AdamW, steps beside the formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullFormatter

from experiments.step_ratio import step_ratio

from . import compare, stats, style
from .errors import FigureError

STUDIES = f"{compare.ABLATION}adama_"
POINT = ["model", "data_id", "steps", *compare.SEEDS]  # what runs over N have in common
KINDS = {  # of weights: colour and marker
    "embedding": ("#2460C8", "s"), "attention": ("#2A9D70", "v"), "mlp": ("#DB3F2F", "^"),
    "norm": ("#A33592", "X"), "head": ("#F2A834", "D"), "all": (style.INK, "o"),
}  # fmt: skip
LOWEST = 0.02  # signal-to-noise ratios below are drawn here


def chosen(runs: pd.DataFrame) -> pd.DataFrame:
    """AdamA's runs over N with AdamW's, by N.

    Runs of the studies ``ablation_adama_...`` and, with the same model, data, length and seeds,
    those of AdamA and AdamW in the study that compares methods. The latter AdamW is the reference.

    Args:
        runs: final runs of runs.parquet.

    Returns:
        Columns of ``runs`` and ``label``, ``reference`` (whether it is that run), ``spread`` (twice
        the standard deviation of AdamW's loss over all its seeds).

    Raises:
        FigureError: no such runs, or not one reference for each of them.
    """
    varied = stats.require(
        runs[runs.study.str.startswith(STUDIES)], f"runs of {STUDIES}... studies", POINT
    )
    both = compare.comparisons(runs)
    both = both[both.method.isin(["adama", "adamw"])]
    beside = both.merge(varied[POINT].drop_duplicates(), on=POINT)
    table = pd.concat([beside.assign(reference=beside.method == "adamw"), varied])
    table["reference"] = table.reference.eq(True)
    if table[table.reference].groupby(POINT).size().tolist() != [1]:
        raise FigureError(
            f"{varied.run_id.iloc[0]}: expected one run of AdamW beside it, of one model and seed."
        )
    seeds = both[(both.method == "adamw") & (both.model == table.model.iloc[0])]
    table["spread"] = 2 * seeds.final_validation_loss.std(ddof=1)
    table["label"] = [
        f"{style.look(run.method).label}, N = {run.micro_batches}" for run in table.itertuples()
    ]
    return table.sort_values(["method", "micro_batches"], kind="stable", ignore_index=True)


def distances(runs: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """Held-out loss of each run at each evaluation, and its difference to the reference's.

    Args:
        runs: what :func:`chosen` returns.
        metrics: rows of metrics.parquet.
    """
    held_out = metrics[metrics.split == "validation"][["run_id", "step", "tokens", "loss"]]
    columns = ["run_id", "method", "label", "micro_batches", "reference"]
    table = runs[columns].merge(held_out, on="run_id", validate="one_to_many")
    stats.require(table, "held-out losses of these runs (metrics.parquet)", ["loss"])
    base = table[table.reference].set_index("step").loss
    return table.assign(difference=table.loss - table.step.map(base))


def curves(table: pd.DataFrame) -> Figure:
    """Held-out loss over the run, and its distance to AdamW's.

    Args:
        table: what :func:`distances` returns.
    """
    fig, (whole, apart) = plt.subplots(1, 2, figsize=(8.6, 3.5))
    apart.axhspan(-compare.MARGIN, compare.MARGIN, color=style.GRID, zorder=0)
    for label, line in table.groupby("label", sort=False):
        look = _look(line.iloc[0])
        whole.plot(line.step, line.loss, label=label, **look)
        apart.plot(line.step, line.difference, **look)
    late = table[table.step >= table.step.max() / 10]
    whole.set_ylim(late.loss.min() - 0.1, late.loss.max() + 0.1)
    whole.set_ylabel("Held-out loss (nats a token)")
    apart.set_ylabel("Loss minus AdamW's (nats a token)")
    whole.set_title("loss")
    apart.set_title("distance to AdamW, same seed")
    for axis in (whole, apart):
        axis.set_xlabel("Optimizer steps")
    whole.legend(loc="upper right")
    return fig


def shade(count: int, largest: int) -> Any:
    """Colour of an N: the more micro-batches, the darker."""
    share = np.log2(count) / max(np.log2(largest), 1)
    return mpl.colormaps["viridis_r"](0.12 + 0.8 * share)


def _look(run: pd.Series, largest: int = 16) -> dict[str, Any]:
    if run.method == "adamw":
        dash = style.SOLID if run.reference else style.DOTTED
        return {"color": style.look("adamw").color, "ls": dash, "lw": 1.8, "zorder": 3}
    marker = "ovs^D"[int(np.log2(run.micro_batches)) % 5]
    own = {"marker": marker, "ms": 4, "markeredgecolor": "white", "markeredgewidth": 0.5}
    return {"color": shade(run.micro_batches, largest), "ls": style.DASHED, "lw": 1.3, **own}


def read(tables: str | Path) -> pd.DataFrame:
    """``micro_batches`` of a folder, as ``python -m experiments.micro_batches`` wrote it.

    Raises:
        FigureError: it is not there.
    """
    path = Path(tables) / "micro_batches.parquet"
    if not path.is_file():
        raise FigureError(
            f"{path}: no such table; make it with `python -m experiments.micro_batches`"
        )
    return pd.read_parquet(path)


def steps(table: pd.DataFrame) -> Figure:
    """Step ratios: against the formula, by kind of weight, and the signal over training.

    Args:
        table: what :func:`read` returns.
    """
    fig, axes = plt.subplots(1, 3, figsize=(10.2, 3.7), width_ratios=[1.15, 1, 1])
    last = table[(table.over == "moments") & (table.step == table.step.max())]
    _against_formula(axes[0], last[last.name.notna()])
    _by_kind(axes[1], last[last.name.isna()])
    _signal(axes[2], table[(table.over == "window") & table.name.isna()])
    counts = sorted(set(table.micro_batches))
    handles = [
        Line2D([], [], color=shade(n, counts[-1]), marker="o", ms=4, label=f"N = {n}")
        for n in counts
    ]
    axes[0].legend(handles=handles, loc="upper left")
    handles = [
        Line2D([], [], color=color, marker=marker, label=kind)
        for kind, (color, marker) in KINDS.items()
        if kind in set(table.kind)
    ]
    axes[1].legend(handles=handles, loc="upper left")
    return fig


def _against_formula(axis: Axes, rows: pd.DataFrame) -> None:
    """A point a tensor and N; lines: the formula."""
    largest = rows.micro_batches.max()
    shown = rows[np.isfinite(rows.snr_odd)]
    places = np.geomspace(LOWEST, max(10.0, 2 * shown.snr_odd.max()), 200)
    for count, points in shown.groupby("micro_batches"):
        color = shade(count, largest)
        axis.plot(places, step_ratio(places, count), color=color, lw=1.2)
        axis.plot(points.snr_odd.clip(lower=LOWEST), points.ratio_even, "o", color=color, ms=3.5,
                  markeredgecolor="white", markeredgewidth=0.4)  # fmt: skip
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axis.set_xlabel("Signal-to-noise ratio of the batch's gradient")
    axis.set_ylabel("AdamA's step / Adam's")
    axis.set_title("measured against the formula")


def _by_kind(axis: Axes, rows: pd.DataFrame) -> None:
    """Single weights: median, middle half (thick) and 5 to 95 % (thin), over N."""
    kinds = [kind for kind in KINDS if kind in set(rows.kind)]
    for index, kind in enumerate(kinds):
        color, marker = KINDS[kind]
        part = rows[rows.kind == kind].sort_values("micro_batches")
        places = np.log2(part.micro_batches) + 0.11 * (index - (len(kinds) - 1) / 2)
        axis.vlines(places, part.q05, part.q95, color=color, lw=0.8)
        axis.vlines(places, part.q25, part.q75, color=color, lw=2.4)
        axis.plot(places, part.q50, marker, color=color, ms=4.5, markeredgecolor="white")
    counts = sorted(set(rows.micro_batches))
    bound = np.log2(counts)
    axis.plot(bound, np.sqrt(counts), color=style.MUTED, ls=style.DASHED, lw=1.0)
    axis.annotate(
        "√N", (bound[-1], np.sqrt(counts[-1])), xytext=(-4, 0), textcoords="offset points",
        ha="right", va="center", color=style.MUTED, fontsize=8,
    )  # fmt: skip
    axis.set_xticks(np.log2(counts), [str(n) for n in counts])
    axis.set_xlabel("N, micro-batches of a batch")
    axis.set_ylabel("AdamA's step / Adam's")
    axis.set_title("single weights, at the end")


def _signal(axis: Axes, rows: pd.DataFrame) -> None:
    """Signal-to-noise ratio of each kind in the stretches of the run."""
    rows = rows[rows.micro_batches == rows.micro_batches.max()]
    for kind, (color, marker) in KINDS.items():
        line = rows[rows.kind == kind].sort_values("step")
        if not line.empty:
            axis.plot(line.step, line.snr.clip(lower=LOWEST), color=color, marker=marker, ms=4.5,
                      lw=1.2, markeredgecolor="white")  # fmt: skip
    axis.set_xscale("log")
    axis.set_yscale("log")
    steps = sorted(set(rows.step))
    axis.set_xticks(steps, [f"{step}" for step in steps])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axis.set_xlabel("Optimizer steps, to the end of the stretch")
    axis.set_ylabel("Signal-to-noise ratio")
    axis.set_title("signal over the run")


def agreement(table: pd.DataFrame) -> tuple[float, float]:
    """Of the tensors at the end, N above 1: share within 5 % of the formula; largest median gap.

    The second number is the median over tensors of ``|ratio_even / predicted - 1|``, for the N
    where it is largest. docs/study.md says what either must be.
    """
    last = table[(table.over == "moments") & (table.step == table.step.max())]
    last = last[last.name.notna() & (last.micro_batches > 1)]
    gap = (last.ratio_even / last.predicted - 1).abs()
    near = (gap <= 0.05).groupby(last.micro_batches).mean()
    return float(near.min()), float(gap.groupby(last.micro_batches).median().max())


def numbers(runs: pd.DataFrame, apart: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """One row a run over N: quality, distances to AdamW, and the measured step ratio.

    Args:
        runs: what :func:`chosen` returns.
        apart: what :func:`distances` returns.
        measured: what :func:`read` returns.
    """
    largest = apart[~apart.reference].groupby("run_id").difference.agg(lambda d: d.abs().max())
    ends = measured[(measured.over == "moments") & (measured.step == measured.step.max())]
    ends = ends[ends.name.isna() & (ends.kind == "all")].set_index("micro_batches")
    reference = runs[runs.reference].iloc[0]
    twins = runs[(runs.method == "adamw") & ~runs.reference].set_index("micro_batches")
    rows = runs.assign(
        difference=runs.final_validation_loss - reference.final_validation_loss,
        largest_difference=runs.run_id.map(largest),
        step_ratio=[
            ends.q50.get(run.micro_batches) if run.method == "adama" else None
            for run in runs.itertuples()
        ],
        same_weights=(runs.method == "adama")
        & (runs.weights_sha256 == runs.micro_batches.map(twins.weights_sha256)),
    )
    rows["reading"] = [_reading(row) for row in rows.itertuples()]
    return rows


def _reading(row: Any) -> str:
    if row.reference:
        return "reference"
    if row.method == "adamw":
        return "rounding alone"
    if row.same_weights:
        return f"the same bits as AdamW, N = {row.micro_batches}"
    return "within 0.01 nats" if abs(row.difference) < compare.MARGIN else "beyond 0.01 nats"


def throughput(path: Path) -> tuple[Figure, pd.DataFrame, dict[str, Any]]:
    """Time of AdamA's update over that of AdamW's with accumulation, as the benchmark wrote it."""
    facts = json.loads(path.read_text())
    table = pd.DataFrame(facts.pop("rows"))
    fig, axis = plt.subplots(figsize=(4.6, 2.9))
    looks = {"adama_to_adamw": ("adama", "AdamA / AdamW, same N"),
             "adamw_to_first": ("adamw", "AdamW / AdamW at N = 1")}  # fmt: skip
    places = np.log2(table.micro_batches)
    for name, (method, label) in looks.items():
        look = style.look(method)
        middle = table[f"{name}_median"]
        spread = [middle - table[f"{name}_min"], table[f"{name}_max"] - middle]
        axis.errorbar(places, middle, yerr=spread, color=look.color, marker=look.marker,
                      ls=look.dash, capsize=2, elinewidth=0.9, label=label)  # fmt: skip
    axis.axhline(1, color=style.MUTED, lw=0.8)
    axis.set_xticks(places, [str(n) for n in table.micro_batches])
    axis.set_xlabel("N, micro-batches of a batch")
    axis.set_ylabel("Time of an update (ratio)")
    axis.legend(loc="upper left")
    return fig, table, facts
