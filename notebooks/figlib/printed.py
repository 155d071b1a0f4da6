"""Predicted memory of full-size models beside the values that papers print."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from . import stats, style
from .errors import FigureError

PARTS = ["weights", "states", "projections", "gradients"]
COUNTED = "weights+states+projections"  # what GaLore-style memory columns print
COMPUTED = ("printed digits", "within 0.1 %", "differs")
NOT_COMPUTED = "not computed"
SIXTEEN_BIT = ("bfloat16", "weight's dtype", "none")


def read(tables: str | Path) -> pd.DataFrame:
    """The table that ``python -m experiments.memory`` wrote into a folder.

    Raises:
        FigureError: it is not there.
    """
    path = Path(tables) / "memory.parquet"
    if not path.is_file():
        raise FigureError(f"{path}: no such table; make it with `python -m experiments.memory`")
    return pd.read_parquet(path)


def full_size(memory: pd.DataFrame) -> pd.DataFrame:
    """One row a model and method: bytes of each part, at the papers' settings.

    Args:
        memory: rows of memory.parquet; those of its table ``papers`` are used.
    """
    rows = memory[memory.table == "papers"]
    stats.require(rows, "predictions of the papers' models (memory.parquet)", ["bytes"])
    keys = ["model", "method", "arguments", "dtype", "storage"]
    wide = rows.pivot_table(index=keys, columns="part", values="bytes", aggfunc="sum", sort=False)
    table = wide[PARTS].astype("int64").reset_index()
    table.columns.name = None
    # 16-bit states are the papers' convention; what keeps others says so
    labels = [style.look(m).label for m in table.method]
    wider = [s not in SIXTEEN_BIT for s in table.storage]
    table["label"] = [
        f"{label}, {storage}" if w else label
        for label, storage, w in zip(labels, table.storage, wider, strict=True)
    ]
    rank = {model: i for i, model in enumerate(dict.fromkeys(table.model))}
    table["_model"] = table.model.map(rank)
    table["_method"] = [style.order(m) for m in table.method]
    table = table.sort_values(["_model", "_method"], ignore_index=True)
    return table.drop(columns=["_model", "_method"]).assign(name=table.model.map(pretty))


def marks(memory: pd.DataFrame, bars: pd.DataFrame) -> pd.DataFrame:
    """Printed totals of weights and states, for bars whose configuration is the printed one.

    A printed row and a bar are the same configuration if our bytes for both are equal. A paper
    that prints weights and states apart (COAP, LOMO) gets the sum of the two. Inferred values
    stand only where nothing is printed.

    Returns:
        Columns ``model``, ``method``, ``source``, ``bytes``.
    """
    rows = computed(memory)
    rows = rows[rows.dtype.isin(set(bars.dtype))]
    found = []
    for bar in bars.itertuples():
        mine = rows[(rows.model == bar.model) & (rows.method == bar.method)]
        total = bar.weights + bar.states + bar.projections
        wanted = {COUNTED: total, "weights": bar.weights}
        wanted |= {"states": bar.states, "states+projections": bar.states + bar.projections}
        mine = mine[mine.bytes == mine.part.map(wanted)]
        by_source = [theirs for _, theirs in mine.groupby("source", sort=False)]
        totals = [(t.standing.iloc[0], source_name(t.iloc[0]), _total(t)) for t in by_source]
        totals = [t for t in totals if t[2] is not None]
        best = "printed" if any(t[0] == "printed" for t in totals) else "inferred"
        found += [(bar.model, bar.method, name, v) for kind, name, v in totals if kind == best]
    return pd.DataFrame(found, columns=["model", "method", "source", "bytes"])


def drawn(bars: pd.DataFrame, printed: pd.DataFrame) -> pd.DataFrame:
    """Everything in the figure as one table: a column of printed bytes for each source."""
    wide = printed.pivot_table(index=["model", "method"], columns="source", values="bytes")
    return bars.join(wide.add_prefix("printed by "), on=["model", "method"])


def _total(theirs: pd.DataFrame) -> float | None:
    """Printed weights + states of one source, in bytes; None if it prints only one of them."""
    sums = theirs.drop_duplicates("part").set_index("part").printed_bytes
    if COUNTED in sums:
        return float(sums[COUNTED])
    states = [p for p in ("states+projections", "states") if p in sums]
    if "weights" in sums and states:
        return float(sums["weights"] + sums[states[0]])
    return None


def computed(memory: pd.DataFrame) -> pd.DataFrame:
    """Printed figures with a computed counterpart, and ``printed_bytes``.

    The bytes of a printed figure follow from ours, which the table has in both units.
    """
    rows = memory[memory.agreement.isin(COMPUTED)].copy()
    stats.require(rows, "printed figures (memory.parquet)", ["printed", "ours", "reason"])
    per_unit = (rows.bytes / rows.ours).where(rows.ours != 0, 0.0)
    return rows.assign(printed_bytes=(rows.printed * per_unit.astype(float)).round())


def comparison(memory: pd.DataFrame) -> pd.DataFrame:
    """Rows of the table: the printed figure, ours, the difference and its reason.

    Printed figures that we cannot compute stand last, with the reason.
    """
    rows = pd.concat([computed(memory), memory[memory.agreement == NOT_COMPUTED]])
    rows["difference"] = rows.ours - rows.printed
    rows["source"] = [source_name(row) for row in rows.itertuples()]
    rows["model"] = rows.model.map(pretty)
    # what we do not compute may be none of our methods
    rows["label"] = [style.LOOKS[m].label if m in style.LOOKS else m for m in rows.method]
    rows["storage"] = rows.storage.replace({"weight's dtype": "as weights"})
    rows["counted"] = rows.part.str.replace("+", " + ", regex=False)
    rows["setting"] = [settings(a) for a in rows.arguments.fillna("")]
    keep = ["source", "where", "model", "method", "label", "setting", "storage", "counted", "unit"]
    keep += ["printed", "ours", "difference", "difference_percent", "agreement", "reason"]
    return rows[keep].reset_index(drop=True)


def source_name(row: pd.Series) -> str:
    """The source, marked where its value was computed from its settings and not printed."""
    return f"{row.source} (inferred)" if row.standing == "inferred" else str(row.source)


def settings(arguments: str) -> str:
    """``rank 128`` for ``{"rank": 128}``."""
    return arguments.strip("{}").replace('"', "").replace(":", "")


def pretty(model: str) -> str:
    """``LLaMA 60M`` for ``llama_60m``; other names stay as they are."""
    family, _, size = model.partition("_")
    return f"LLaMA {size.upper()}" if family == "llama" else model


def agreement(rows: pd.DataFrame) -> str:
    """How many of the printed figures that we compute are met, in words."""
    rows = rows[rows.agreement != NOT_COMPUTED]
    counts = rows.agreement.value_counts()
    unknown = [a for a in counts.index if a not in COMPUTED]
    if unknown:
        raise FigureError(f"printed figures: agreement {unknown[0]!r} is none of {COMPUTED}")
    met = _number(counts, COMPUTED[:2])
    return f"{met} of {len(rows)} agree (to the printed digits, or within 0.1 %)"


def _number(counts: pd.Series, names: Iterable[str]) -> int:
    return int(sum(counts.get(name, 0) for name in names))
