"""Where the energy of gradients lies: Haar band, singular directions, over training."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from experiments import concentration

from . import captions, stats, style
from .errors import FigureError

LEVEL = 2  # of GWT's main tables, and of the study's runs: a quarter of the numbers is kept
EARLY, LATE = 10, 240  # updates up to, and from, which docs/study.md compares
KINDS: dict[str, tuple[str, str, str]] = {  # kind to its name in pictures, colour and marker
    "q_proj": ("query", "#2460C8", "o"),
    "k_proj": ("key", "#5BCBF0", "v"),
    "v_proj": ("value", "#A33592", "P"),
    "o_proj": ("attention output", "#8E6783", "X"),
    "gate_proj": ("MLP gate", "#2A9D70", "s"),
    "up_proj": ("MLP up", "#6C8A00", "D"),
    "down_proj": ("MLP down", "#DB3F2F", "^"),
    "embed_tokens": ("embedding", "#9FA6B0", "p"),
    "lm_head": ("output head", "#F2A834", "h"),
}
TREATED = "treated matrices"
FACTS = [
    "run_id", "study", "suite", "smoke", "model", "method", "lr", "seed", "steps", "parameters",
    "commit", "dirty", "config_hash", "data_id", "data_fingerprint", "final_validation_loss",
    "weights_sha256",
]  # fmt: skip


def read(tables: str | Path) -> pd.DataFrame:
    """The table of gradients, as ``python -m experiments.gradients`` wrote it, kinds in order.

    Raises:
        FigureError: it is not there.
    """
    path = Path(tables) / "gradients.parquet"
    if not path.is_file():
        raise FigureError(f"{path}: no such table; make it with `python -m experiments.gradients`")
    table = pd.read_parquet(path).rename(columns={"rows": "height", "columns": "width"})
    numbers = ("height", "width", "step", "level", "rank", "kept")
    table = table.astype(dict.fromkeys(numbers, float)).astype({"step": int})
    table = table.assign(axis=table.axis.fillna(""), order=table.order.fillna(""))
    table["fraction"] = table["rank"] / table[["height", "width"]].min(axis=1)
    others = sorted(set(table.kind) - set(KINDS))
    table["kind"] = pd.Categorical(table.kind, [*KINDS, *others], ordered=True)
    return table


def runs_of(table: pd.DataFrame) -> pd.DataFrame:
    """One row a measured run, as rows of runs.parquet are."""
    return table[FACTS].drop_duplicates().reset_index(drop=True)


def of_run(rows: pd.DataFrame) -> str:
    """Sentences on what was measured: run, size, updates."""
    run = rows.iloc[0]
    updates = captions.listed(str(step) for step in sorted(set(rows.step)))
    return (
        f"{style.look(run.method).label} on {run.model} ({run.parameters / 1e6:.3g} M weights), "
        f"seed {run.seed}, data {run.data_id} (fingerprint {run.data_fingerprint[:8]}), peak rate "
        f"{run.lr:g}; gradients of the whole batch at updates {updates} of {run.steps}."
    )


def joined(**parts: pd.DataFrame) -> pd.DataFrame:
    """What the panels of one figure draw, one below the other, told apart by ``panel``."""
    return pd.concat([table.assign(panel=name) for name, table in parts.items()])


def one(table: pd.DataFrame, method: str, tensor: str = "gradient") -> pd.DataFrame:
    """The rows of one method's run and tensor."""
    rows = table[(table.method == method) & (table.tensor == tensor)]
    return stats.require(rows, f"{tensor} of {method} (gradients.parquet)", ["share"])


def middle(rows: pd.DataFrame, keys: list[str], value: str = "share") -> pd.DataFrame:
    """Median, ``lowest`` and ``highest`` over matrices and updates, and their number ``cases``."""
    found = rows.groupby(keys, observed=True)[value].agg(["median", "min", "max", "size"])
    names = {"median": value, "min": "lowest", "max": "highest", "size": "cases"}
    return found.rename(columns=names).reset_index()


def bands(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Share of the band along GWT's axis, for each ``order`` of the columns, beside 2^-level.

    ``times``: as a multiple of 2^-level.
    """
    chosen = rows[(rows.choice == "band") & (rows.axis == "last")]
    table = middle(chosen, ["kind", "order", "level", *keys])
    table["independent"] = 2.0**-table.level
    return table.assign(times=table.share / table.independent)


def directions(rows: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Share of the best directions by rank, beside that of independent numbers."""
    table = middle(
        rows[rows.choice == "singular"], ["kind", "height", "width", "rank", "fraction", *keys]
    )
    table["independent"] = [
        concentration.independent_singular_share(r.rank, r.height, r.width)
        for r in table.itertuples()
    ]
    return table


def matched(rows: pd.DataFrame, choice: str, level: int = LEVEL) -> pd.Series:
    """Which rows of ``singular`` or ``random`` keep as many numbers as the band of the level."""
    wanted = [
        concentration.matched_rank(height, width, level)
        for height, width in zip(rows.height, rows.width, strict=True)
    ]
    return (rows.choice == choice) & (rows["rank"] == wanted)


def equal_numbers(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a matrix and update: shares of every choice that keeps as many numbers.

    Columns ``band``, ``permuted``, ``expected`` (mean over all orders), ``other_axis``,
    ``largest``, ``entries``, ``singular``, ``random``, ``independent_singular``, ``stable_rank``.
    """
    keys = ["kind", "name", "height", "width", "treated", "step", "stable_rank"]
    at = rows.level == LEVEL
    last = at & (rows.axis == "last")
    chosen = {
        "band": last & (rows.choice == "band") & (rows.order == "own"),
        "permuted": last & (rows.order == "permuted"),
        "expected": last & (rows.order == "expected"),
        "other_axis": at & (rows.axis == "first") & (rows.order == "own"),
        "largest": last & (rows.choice == "largest"),
        "entries": last & (rows.choice == "entries"),
        "singular": matched(rows, "singular"),
        "random": matched(rows, "random"),
    }
    table = pd.concat(
        [rows[mask].set_index(keys).share.rename(name) for name, mask in chosen.items()], axis=1
    ).reset_index()
    table["independent_singular"] = [
        concentration.independent_singular_share(
            concentration.matched_rank(r.height, r.width, LEVEL), r.height, r.width
        )
        for r in table.itertuples()
    ]
    return table


def energy_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Medians of `equal_numbers`: a row a kind, one for all treated, one of independent numbers."""
    each = equal_numbers(rows)
    values = list(each.columns[each.columns.get_loc("stable_rank") :])
    parts = [(named(str(kind)), group) for kind, group in each.groupby("kind", observed=True)] + [
        (TREATED, each[each.treated])
    ]
    table = pd.DataFrame(
        {"what": what, "matrices": group.name.nunique(), "cases": len(group)}
        | group[values].median().to_dict()
        for what, group in parts
    )
    largest = concentration.independent_largest_share(2.0**-LEVEL)
    chance = dict.fromkeys(("band", "permuted", "expected", "other_axis", "random"), 2.0**-LEVEL)
    chance |= {"largest": largest, "entries": largest}
    chance_row = pd.DataFrame([{"what": "independent numbers", **chance}])
    return pd.concat([table, chance_row], ignore_index=True)


def premise(table: pd.DataFrame) -> pd.DataFrame:
    """The numbers by which docs/study.md decides, one row a run and tensor; treated matrices."""
    rows = []
    for (method, tensor), group in table.groupby(["method", "tensor"], sort=False):
        each = equal_numbers(group[group.treated])
        if each.empty:
            continue
        early, late = each.stable_rank[each.step <= EARLY], each.stable_rank[each.step >= LATE]
        rows.append(
            {"method": method, "label": style.look(str(method)).label, "tensor": tensor}
            | {"cases": len(each), "band": each.band.median(), "permuted": each.permuted.median()}
            | {"excess": each.band.median() - each.permuted.median()}
            | {"above": (each.band > each.permuted).mean(), "singular": each.singular.median()}
            | {"independent": each.independent_singular.median()}
            | {"singular_excess": (each.singular - each.independent_singular).median()}
            | {"early_rank": early.median(), "late_rank": late.median()}
        )
    return pd.DataFrame(rows)


def named(kind: str) -> str:
    """What pictures call a kind of weight; itself, if it has no name here."""
    return KINDS[kind][0] if kind in KINDS else kind


def _look(kind: str) -> dict[str, str]:
    label, color, marker = KINDS.get(kind, (kind, style.INK, "."))
    return {"label": label, "color": color, "marker": marker}


def _aspect(table: pd.DataFrame) -> pd.Series:
    sides = table[["height", "width"]]
    return sides.min(axis=1) / sides.max(axis=1)


def _each_kind(axis: Axes, table: pd.DataFrame, x: str, y: str = "share") -> None:
    for kind, rows in table.groupby("kind", observed=True):
        axis.plot(
            rows[x], rows[y], **_look(str(kind)), lw=1.3, ms=4.5,
            markeredgecolor="white", markeredgewidth=0.5,
        )  # fmt: skip


def _control(axis: Axes, table: pd.DataFrame, x: str) -> None:
    """The range of all kinds in other orders of the columns; the line of independent numbers."""
    looks = (("permuted", "one random order", 0.2), ("expected", "mean of all orders", 0.6))
    for order, label, alpha in looks:
        control = table[table.order == order].groupby(x).times.agg(["min", "max"])
        axis.fill_between(
            control.index, control["min"], control["max"], color=style.MUTED, alpha=alpha, lw=0,
            label=f"columns permuted, {label}",
        )  # fmt: skip
    axis.axhline(1, color=style.INK, ls="--", lw=1.1, zorder=3, label="independent numbers")


def _baselines(axis: Axes, table: pd.DataFrame, x: str) -> None:
    """What independent numbers have, a line for each shape; the squarest is the highest."""
    dashes = ((0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 1.5, 1.5, 1.5)))
    shapes = table.assign(aspect=_aspect(table)).drop_duplicates(["aspect", x])
    groups = list(shapes.groupby("aspect", sort=True))
    for dash, (aspect, rows) in zip(dashes, reversed(groups), strict=False):
        rows = rows.sort_values(x)
        label = f"independent numbers, sides 1 : {1 / aspect:.3g}"
        axis.plot(rows[x], rows.independent, color=style.INK, ls=dash, lw=1.1, label=label)


def _updates(axis: Axes, steps: pd.Series) -> None:
    ticks = [step for step in (1, 3, 10, 40, 100, 400, 1000, 10_000) if step <= steps.max()]
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("Update (log scale)")


def _finish(fig: Figure, axes: np.ndarray) -> Figure:
    """One legend for both panels, below them."""
    handles = {
        label: h for a in axes for h, label in zip(*a.get_legend_handles_labels(), strict=True)
    }
    fig.legend(handles.values(), handles, loc="outside lower center", ncols=4)
    return fig


def energy_figure(levels: pd.DataFrame, training: pd.DataFrame) -> Figure:
    """Share of the band as a multiple of chance: by level, and at `LEVEL` over training.

    Args:
        levels: what `bands` returns, without further keys.
        training: the same by ``step``, of one level.
    """
    fig, axes = plt.subplots(1, 2, figsize=(8.4, 4.2))
    by_level, over_training = axes
    for axis, table, x in ((by_level, levels, "level"), (over_training, training, "step")):
        _control(axis, table, x)
        _each_kind(axis, table[table.order == "own"], x, "times")
    by_level.set_xticks(sorted(set(levels.level)))
    by_level.set_xlabel("Level (1/2^level of the numbers are kept)")
    by_level.set_ylabel("Share of the energy, as a multiple of 2^-level")
    by_level.set_title("Approximation band, all updates")
    _updates(over_training, training.step)
    over_training.set_title(f"Level {LEVEL}, over training")
    return _finish(fig, axes)


def singular_figure(ranks: pd.DataFrame, training: pd.DataFrame) -> Figure:
    """Cumulative share by rank, and of the best quarter of the directions over training.

    Args:
        ranks: what `directions` returns, without further keys.
        training: the same by ``step``, of one fraction.
    """
    fig, axes = plt.subplots(1, 2, figsize=(8.4, 4.2), sharey=True)
    by_rank, over_training = axes
    for axis, table, x in ((by_rank, ranks, "fraction"), (over_training, training, "step")):
        _baselines(axis, table, x)
        _each_kind(axis, table, x)
    by_rank.set_xscale("log", base=2)
    ticks = sorted(set(ranks.fraction))
    by_rank.set_xticks(ticks, [f"1/{1 / t:g}" if t < 1 else "all" for t in ticks])
    by_rank.set_ylim(0, 1.03)
    by_rank.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{100 * y:g} %"))
    by_rank.set_xlabel("Directions kept, as a part of the shorter side (log scale)")
    by_rank.set_ylabel("Share of the energy")
    by_rank.set_title("Strongest directions, all updates")
    _updates(over_training, training.step)
    over_training.set_title("The strongest quarter, over training")
    return _finish(fig, axes)
