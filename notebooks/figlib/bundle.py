"""Bundles: one folder a figure or table, with its data, caption and provenance.

``paper_figures/<id>_<suite>/`` holds ``figure.{pdf,svg,png}`` or ``table.{csv,md,tex}``,
``data.csv`` (exactly what is drawn, unrounded), ``caption.md`` and ``provenance.json``. The same
tables give the same bytes: no time stamps, no random identifiers.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from . import style
from .errors import FigureError

MISSING = "–"
Columns = Mapping[str, tuple[str, str]]  # column of the data -> (heading, format)
RUN_FACTS = ["run_id", "commit", "dirty", "config_hash", "data_fingerprint"]


@dataclass(frozen=True)
class Source:
    """Where a figure's numbers come from.

    Attributes:
        notebook: path of the notebook below the repository root.
        runs: the rows of runs.parquet that are drawn; none for numbers that are computed by
            formula and need no run.
        facts: anything else that a reader needs to find the numbers again.
    """

    notebook: str
    runs: pd.DataFrame = field(default_factory=pd.DataFrame)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def smoke_note(self) -> str | None:
        """The mark that a smoke run's figure and caption carry; None for other runs."""
        if self.runs.empty or not self.runs["smoke"].any():
            return None
        steps = sorted({int(s) for s in self.runs["steps"]})
        span = f"{steps[0]}" if len(steps) == 1 else f"{steps[0]}–{steps[-1]}"
        return f"smoke run: tiny model, {span} steps, not a result to cite"

    def describe(self) -> dict[str, Any]:
        """The JSON form: what was run, from which code and data."""
        records = []
        if not self.runs.empty:
            rows = self.runs.sort_values("run_id")[[c for c in RUN_FACTS if c in self.runs]]
            records = json.loads(rows.to_json(orient="records"))
        return {"notebook": self.notebook, **self.facts, "runs": records}


def write_figure(
    bundles: str | Path,
    name: str,
    fig: Figure,
    data: pd.DataFrame,
    caption: str,
    *,
    suite: str,
    source: Source,
) -> Path:
    """Write one figure's bundle and return its folder.

    Args:
        bundles: the folder of all bundles (``paper_figures``).
        name: identifier, e.g. ``convergence``; the folder is ``<name>_<suite>``.
        fig: the drawn figure; a smoke run's mark is added here.
        data: exactly what is drawn.
        caption: Markdown; the first sentence, in bold, is the title.
        suite: name of the suite whose results are shown.
        source: provenance.
    """
    if source.smoke_note:
        fig.text(
            0.0, -0.012, source.smoke_note, ha="left", va="top", fontsize=8, color=style.SMOKE,
            fontweight="bold", fontstyle="italic",
        )  # fmt: skip
    out = _fresh(bundles, name, suite)
    save = {"bbox_inches": "tight", "pad_inches": 0.08, "facecolor": "white"}
    fig.savefig(out / "figure.png", metadata={"Software": None}, **save)
    fig.savefig(out / "figure.svg", metadata={"Date": None, "Creator": None}, **save)
    dates = {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None}
    fig.savefig(out / "figure.pdf", metadata=dates, **save)
    return _finish(out, "figure", name, data, caption, suite, source)


def write_table(
    bundles: str | Path,
    name: str,
    data: pd.DataFrame,
    caption: str,
    *,
    suite: str,
    source: Source,
    columns: Columns,
) -> Path:
    """Write one table's bundle and return its folder.

    ``data.csv`` keeps every number unrounded under its own name; ``table.*`` shows the chosen
    columns, rounded, under readable headings.

    Args:
        bundles: the folder of all bundles (``paper_figures``).
        name: identifier; the folder is ``<name>_<suite>``.
        data: one row a line of the table.
        caption: Markdown; the first sentence, in bold, is the title.
        suite: name of the suite whose results are shown.
        source: provenance.
        columns: which columns of ``data`` to show, under which heading, in which format
            (a specification such as ``.2f``).
    """
    shown = display(data, columns)
    out = _fresh(bundles, name, suite)
    shown.to_csv(out / "table.csv", index=False, lineterminator="\n")
    (out / "table.md").write_text(markdown(data, columns), encoding="utf-8")
    (out / "table.tex").write_text(latex(data, columns), encoding="utf-8")
    return _finish(out, "table", name, data, caption, suite, source)


def display(data: pd.DataFrame, columns: Columns) -> pd.DataFrame:
    """The table as readers see it: chosen columns, headings, rounded text, a dash for nothing."""
    absent = [c for c in columns if c not in data.columns]
    if absent:
        raise FigureError(f"table: no column {absent[0]!r}; it has {', '.join(data.columns)}.")
    headings = [heading for heading, _ in columns.values()]
    if twice := [heading for heading in headings if headings.count(heading) > 1]:
        raise FigureError(f"table: two columns are headed {twice[0]!r}; name each differently.")
    return pd.DataFrame(
        {
            heading: [MISSING if pd.isna(v) else format(v, spec) for v in data[column]]
            for column, (heading, spec) in columns.items()
        }
    )


def markdown(data: pd.DataFrame, columns: Columns) -> str:
    """A GitHub table, numbers right; characters that Markdown would interpret are escaped."""
    shown = display(data, columns)
    rules = ["---:" if number else "---" for number in _numeric(data, columns)]
    lines = [[markdown_text(c) for c in shown.columns], rules]
    lines += [[markdown_text(v) for v in row] for row in shown.itertuples(index=False)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def markdown_text(value: Any) -> str:
    """``value`` as literal text on one line of Markdown."""
    return " ".join(re.sub(r"([\\`*_{}\[\]<>|~])", r"\\\1", str(value)).split())


def latex(data: pd.DataFrame, columns: Columns) -> str:
    """A booktabs table; text left, numbers right, LaTeX's special characters escaped."""
    sides = "".join("r" if number else "l" for number in _numeric(data, columns))
    return display(data, columns).to_latex(index=False, escape=True, column_format=sides)


def _numeric(data: pd.DataFrame, columns: Columns) -> list[bool]:
    return [pd.api.types.is_numeric_dtype(data[column]) for column in columns]


def folder(bundles: str | Path, name: str, suite: str) -> Path:
    """Path of the bundle ``name`` of ``suite``."""
    for what, value in (("name", name), ("suite", suite)):
        if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", value):
            raise FigureError(f"bundle {what} {value!r}: use small letters, digits, '_', '.', '-'.")
    return Path(bundles) / f"{name}_{suite}"


def _fresh(bundles: str | Path, name: str, suite: str) -> Path:
    """An empty folder beside the bundle; it takes the bundle's place when complete."""
    final = folder(bundles, name, suite)
    out = final.with_name(f".{final.name}.partial")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def _finish(
    out: Path,
    kind: str,
    name: str,
    data: pd.DataFrame,
    caption: str,
    suite: str,
    source: Source,
) -> Path:
    if data.empty:
        raise FigureError(f"bundle {name!r}: nothing to show, its data has no rows.")
    data.to_csv(out / "data.csv", index=False, lineterminator="\n")
    note = f"\n**{source.smoke_note}**\n" if source.smoke_note else ""
    text = " ".join(caption.split())
    (out / "caption.md").write_text(f"{text}\n{note}", encoding="utf-8")
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(out.iterdir())}
    record = {
        "id": f"{name}_{suite}",
        "kind": kind,
        "suite": suite,
        "smoke": source.smoke_note is not None,
        **source.describe(),
        "sha256": files,
    }
    text = json.dumps(record, indent=2, ensure_ascii=False, sort_keys=False)
    (out / "provenance.json").write_text(text + "\n", encoding="utf-8")
    final = folder(out.parent, name, suite)
    shutil.rmtree(final, ignore_errors=True)
    out.rename(final)
    return final
