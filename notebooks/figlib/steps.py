"""Whole steps on tensors without memory: tables, stacked bars, time lines, largest models."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from . import stats, style
from .bars import GIB
from .errors import FigureError
from .printed import pretty, settings

PANELS_A_ROW = 3
PARTS = ["weights", "gradients", "states", "activations"]
PAPERS = ["lomo_table1", "coap_figure2", "galore_table11"]  # studies that copy a printed table
# kinds of memopt.accounting.tracing, in the order in which they are stacked
KINDS = ["weights", "states", "gradients", "activations", "temporaries", "other"]
COLORS = {
    "weights": style.WEIGHTS, "states": "#2460C8", "gradients": "#F2A834",
    "activations": "#2A9D70", "temporaries": "#DB3F2F", "other": style.INK,
}  # fmt: skip


def read(tables: str | Path, name: str) -> pd.DataFrame:
    """``steps`` or ``timeline`` of a folder, as ``python -m experiments.memory_steps`` wrote it.

    Raises:
        FigureError: it is not there.
    """
    path = Path(tables) / f"{name}.parquet"
    if not path.is_file():
        raise FigureError(
            f"{path}: no such table; make it with `python -m experiments.memory_steps`"
        )
    return pd.read_parquet(path)


def wide(steps: pd.DataFrame, study: str) -> pd.DataFrame:
    """One row a configuration of a study, one column a part, in the order of the paper."""
    rows = steps[steps.study == study]
    stats.require(rows, f"{study} (steps.parquet)", ["value"])
    keys = ["model", "method", "arguments", "dtype", "checkpointing", "in_backward"]
    table = rows.pivot_table(index=keys, columns="part", values="value", sort=False).reset_index()
    table.columns.name = None
    peaks = rows[rows.part == "peak"].set_index(keys).printed
    table["printed_peak"] = peaks.reindex(pd.MultiIndex.from_frame(table[keys])).to_numpy()
    table["label"] = [configuration(row) for row in table.itertuples()]
    return table


def configuration(row: pd.Series) -> str:
    """Method and how it is run, for example ``COAP rank 512, checkpointing, in backward``."""
    chosen = settings(row.arguments).replace("storage ", "").replace("bfloat16", "")
    parts = [f"{style.look(row.method).label} {chosen}".strip(" ,")]
    parts += ["checkpointing"] if row.checkpointing else []
    parts += ["in backward"] if row.in_backward else []
    return ", ".join(parts)


def peaks(table: pd.DataFrame, printed_unit: str) -> Figure:
    """Stacked bars of the parts, a mark at the peak, and the printed peak where there is one."""
    fig, axis = plt.subplots(figsize=(7.4, 0.34 * len(table) + 1.1))
    for y, row in enumerate(table.itertuples()):
        left = 0.0
        for part in PARTS:
            width = getattr(row, part) / GIB
            axis.barh(y, width, left=left, height=0.62, color=COLORS[part], lw=0)
            left += width
        axis.plot([row.peak / GIB] * 2, [y - 0.42, y + 0.42], color=style.INK, lw=1.6)
        if pd.notna(row.printed_peak):
            axis.plot(row.printed_peak, y, **_printed())
        axis.annotate(
            style.digits(row.peak / GIB, 3), (1.0, y), xycoords=axis.get_yaxis_transform(),
            xytext=(4, 0), textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axis.set_yticks(range(len(table)), table.label)
    axis.set_ylim(len(table) - 0.5, -0.6)
    axis.tick_params(axis="y", length=0)
    axis.grid(False, axis="y")
    axis.set_xlim(0)
    axis.set_xlabel("GiB (numbers: peak of the step)")
    handles: list[Patch | Line2D] = [Patch(color=COLORS[p], label=p) for p in PARTS]
    handles.append(Line2D([], [], color=style.INK, lw=1.6, label="peak of the step"))
    if table.printed_peak.notna().any():
        handles.append(Line2D([], [], label=f"peak printed ({printed_unit})", **_printed()))
    fig.legend(handles=handles, loc="outside upper left", ncols=6, columnspacing=1.2)
    return fig


def _printed() -> dict[str, object]:
    return {
        "marker": "^", "markersize": 6, "markerfacecolor": "white",
        "markeredgecolor": style.INK, "markeredgewidth": 1.1, "linestyle": "none",
    }  # fmt: skip


def timelines(timeline: pd.DataFrame) -> Figure:
    """Stacked areas of what lives through one step, a panel a method, on one scale."""
    stats.require(timeline, "traced steps (timeline.parquet)", KINDS)
    methods = list(dict.fromkeys(timeline.method))
    columns = min(PANELS_A_ROW, len(methods))
    lines = -(-len(methods) // columns)
    size = (3.6 * columns, 2.8 * lines + 0.2)
    fig, grid = plt.subplots(lines, columns, figsize=size, sharey=True, squeeze=False)
    for axis in grid.flat[len(methods) :]:
        axis.set_axis_off()
    axes = list(grid.flat[: len(methods)])
    for axis, method in zip(axes, methods, strict=True):
        rows = timeline[timeline.method == method]
        values = [rows[kind].to_numpy() / GIB for kind in KINDS]
        axis.stackplot(rows.operation, values, colors=[COLORS[k] for k in KINDS], lw=0)
        total = rows[KINDS].sum(axis=1)
        axis.set_title(f"{style.look(method).label}: peak {style.digits(total.max() / GIB, 4)} GiB")
        axis.set_xlabel("operation of the step (thousands)")
        axis.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / 1000:g}"))
        axis.set_xlim(rows.operation.min(), rows.operation.max())
        axis.grid(False)
    top = axes[0].get_ylim()[1] * 1.08  # one height for all panels, with room for the names
    for axis, method in zip(axes, methods, strict=True):
        _phases(axis, timeline[timeline.method == method], top)
    for axis in grid[:, 0]:
        axis.set_ylabel("GiB alive")
    handles = [Patch(color=COLORS[k], label=k) for k in KINDS]
    fig.legend(handles=handles, loc="outside upper left", ncols=len(KINDS), columnspacing=1.2)
    return fig


def _phases(axis: Axes, rows: pd.DataFrame, top: float) -> None:
    axis.set_ylim(0, top)
    for phase, part in rows.groupby("phase", sort=False):
        start, end = part.operation.min(), part.operation.max()
        if start > rows.operation.min():
            axis.axvline(start, color=style.INK, lw=0.8, ls=":")
        if end - start > 0.08 * (rows.operation.max() - rows.operation.min()):
            axis.text((start + end) / 2, 0.99 * top, phase, ha="center", va="top", fontsize=7.5)


def with_bytes_per_weight(sizes: pd.DataFrame) -> pd.DataFrame:
    """Adds ``elements`` of each model, and ``bytes_per_weight`` of weights and states together.

    Args:
        sizes: what ``printed.full_size`` returns, with AdamW among the methods: its weights, two
            bytes each, are the model's own (adapters have more).
    """
    own = sizes[sizes.method == "adamw"].set_index("model").weights // 2
    table = sizes.assign(elements=sizes.model.map(own))
    kept = table.weights + table.states + table.projections
    return table.assign(bytes_per_weight=kept / table.elements)


def per_weight(sizes: pd.DataFrame) -> Figure:
    """Bytes of weights and states for each weight of the model, against its size.

    Args:
        sizes: what `with_bytes_per_weight` returns.
    """
    fig, axis = plt.subplots(figsize=(6.4, 4.4))
    for method, rows in sizes.groupby("method", sort=False):
        look = style.look(method)
        axis.plot(
            rows.elements / 1e6, rows.bytes_per_weight, color=look.color, marker=look.marker,
            ls=look.dash, ms=4, lw=1.3, label=rows.label.iloc[0],
        )  # fmt: skip
    axis.set_xscale("log")
    models = sizes.drop_duplicates("model")
    names = [pretty(model).removeprefix("LLaMA ") for model in models.model]
    axis.set_xticks(models.elements / 1e6, names)
    axis.minorticks_off()
    axis.set_ylim(0)
    axis.axhline(2, color=style.MUTED, lw=0.8, ls=":")
    axis.annotate("bfloat16 weights alone", (models.elements.min() / 1e6, 2), xytext=(0, -9),
                  textcoords="offset points", fontsize=7, color=style.MUTED)  # fmt: skip
    axis.set_xlabel("LLaMA, weights (log scale)")
    axis.set_ylabel("Bytes a weight: weights + states + projections")
    fig.legend(loc="outside right upper", fontsize=7.5)
    return fig


def micro_batches(steps: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """Peak against the number of micro-batches of one mini-batch, a panel a model and precision."""
    rows = steps[steps.study == "micro_batches"]
    stats.require(rows, "micro_batches (steps.parquet)", ["value"])
    keys = ["model", "dtype"]
    panels = list(rows.groupby(keys, sort=False))
    fig, axes = plt.subplots(1, len(panels), figsize=(1.0 + 3.3 * len(panels), 2.9), squeeze=False)
    for axis, ((model, dtype), part) in zip(axes[0], panels, strict=True):
        for method, line in part.groupby("method", sort=False):
            look = style.look(method)
            label = look.label if method == "adama" else f"{look.label}, accumulation"
            axis.plot(line.micro_batches, line.value / GIB, color=look.color, marker=look.marker,
                      ls=look.dash, label=label)  # fmt: skip
        axis.set_xscale("log", base=2)
        counts = sorted(set(part.micro_batches))
        axis.set_xticks(counts, [str(c) for c in counts])
        axis.minorticks_off()
        axis.set_ylim(0)
        axis.set_title(f"{model}, {dtype}")
        axis.set_xlabel("micro-batches in a mini-batch")
    axes[0, 0].set_ylabel("Peak of a step (GiB)")
    axes[0, 0].legend(loc="upper right")
    table = rows.pivot_table(
        index=[*keys, "micro_batches", "batch"], columns="method", values="value", sort=False
    ).reset_index()
    table.columns.name = None
    table["saved_percent"] = 100 * (1 - table.adama / table.adamw)
    return fig, table


LARGEST = {  # (method, divided) -> name
    ("adamw", False): "AdamW",
    ("adamw", True): "AdamW + ZeRO-1",
    ("adama", False): "AdamA",
    ("adama", True): "AdamA + ZeRO-1",
}


def largest(steps: pd.DataFrame) -> tuple[Figure, pd.DataFrame]:
    """The largest model of each method on each card, with its ratio to plain AdamW."""
    rows = steps[steps.study == "largest_model"]
    stats.require(rows, "largest_model (steps.parquet)", ["value"])
    keys = ["model", "dtype", "memory", "method", "processes"]
    table = rows.pivot_table(index=keys, columns="part", values="value", sort=False).reset_index()
    table.columns.name = None
    table["label"] = [LARGEST[r.method, r.processes > 1] for r in table.itertuples()]
    base = table[table.label == "AdamW"].set_index(["dtype", "memory"]).parameters
    table["times_adamw"] = [r.parameters / base[r.dtype, r.memory] for r in table.itertuples()]
    panels = list(table.groupby("dtype", sort=False))
    cards = sorted(set(table.memory))
    fig, axes = plt.subplots(
        1, len(panels), figsize=(1.2 + 3.9 * len(panels), 0.36 * 4 * len(cards) + 1.2),
        squeeze=False, sharey=True,
    )  # fmt: skip
    for axis, (dtype, part) in zip(axes[0], panels, strict=True):
        ordered = part.sort_values(["memory"], kind="stable").reset_index(drop=True)
        for y, row in enumerate(ordered.itertuples()):
            look = style.look(row.method)
            divided = {"hatch": "////", "edgecolor": "white"} if row.processes > 1 else {}
            axis.barh(y, row.parameters / 1e9, height=0.66, color=look.color, lw=0, **divided)
            axis.annotate(f"{row.parameters / 1e9:.2f} B  ({row.times_adamw:.2f}×)",
                          (row.parameters / 1e9, y), xytext=(5, 0), textcoords="offset points",
                          va="center", fontsize=7.5)  # fmt: skip
        names = [f"{row.label}, {row.memory / 1e9:.0f} GB" for row in ordered.itertuples()]
        axis.set_yticks(range(len(ordered)), names)
        axis.set_ylim(len(ordered) - 0.5, -0.6)
        axis.set_xlim(0, part.parameters.max() / 1e9 * 1.35)
        axis.tick_params(axis="y", length=0)
        axis.grid(False, axis="y")
        axis.set_title(dtype)
        axis.set_xlabel("Billion weights of the deepest model that fits")
    return fig, table


def comparison(steps: pd.DataFrame) -> pd.DataFrame:
    """The papers' figures beside ours, in the printed unit; what nobody printed is left out."""
    rows = steps[steps.study.isin(PAPERS)].copy()
    stats.require(rows, "steps of the papers (steps.parquet)", ["value"])
    shown = rows[rows.printed.notna()] if rows.printed.notna().any() else rows
    shown = shown.assign(
        configuration=[configuration(row) for row in shown.itertuples()],
        ours=shown.ours.fillna(shown.value.astype(float) / GIB),
        unit=shown.unit.fillna("GiB"),
        model=shown.model.map(pretty),
        reason=shown.reason.fillna(""),
    )
    shown["difference"] = shown.ours - shown.printed
    keep = ["source", "model", "configuration", "dtype", "part", "unit", "printed", "ours"]
    return shown[[*keep, "difference", "agreement", "reason"]].reset_index(drop=True)


def shares(steps: pd.DataFrame) -> pd.DataFrame:
    """LOMO's figure of shares: each part over the sum, with checkpointing."""
    rows = wide(steps, "lomo_table1")
    rows = rows[rows.checkpointing]
    whole = rows[PARTS].sum(axis=1)
    table = rows[["label", *PARTS]].copy()
    for part in PARTS:
        table[part] = 100 * rows[part] / whole
    return table.reset_index(drop=True)
