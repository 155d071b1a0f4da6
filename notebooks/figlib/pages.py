"""Make the pages that ``snakemake --report`` shows: one a bundle, and one of the suite's runs.

Run below ``notebooks/``: ``python -m figlib.pages BUNDLES SUITE RUNS OUT NAME…``. A page stands by
itself in one HTML file. Of a CSV Snakemake's report offers a download only, and of a tall picture
it cuts the upper part.
"""

from __future__ import annotations

import argparse
import base64
import csv
import json
import re
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from .errors import FigureError

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; margin: 1.5rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
p { max-width: 48rem; } svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; font-size: 13px; margin-bottom: 1rem; }
th, td { padding: 3px 10px; text-align: left; border-bottom: 1px solid #d9dee3; }
th { position: sticky; top: 0; background: white; vertical-align: bottom; }
th:empty { padding: 0; } td { white-space: nowrap; vertical-align: top; }
td.long { white-space: normal; min-width: 28rem; }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
"""
NUMBER = re.compile(r"[-+−±]?\d[\d.,]*(e[-+]?\d+)?%?|–")
HASH = re.compile(r"[0-9a-f]{40,}")
LONG = 48  # characters from which a cell's lines may break
RUN_FACTS = {  # column of runs.parquet, or key of a bundle's runs -> heading
    "run_id": "run",
    "commit": "commit",
    "dirty": "uncommitted changes",
    "config_hash": "config hash",
    "data_fingerprint": "data fingerprint",
}
RUN_COSTS = {
    "verdict": "ended",
    "steps": "steps",
    "seconds": "training (s)",
    "peak_rss_bytes": "peak memory (MiB)",
    "started": "started",
}


def page(folder: Path) -> str:
    """The page of one bundle: picture or table, caption, and where its numbers come from.

    Args:
        folder: the bundle, as ``bundle.write_figure`` or ``bundle.write_table`` left it.
    """
    record = json.loads(read(folder / "provenance.json"))
    caption = paragraphs(read(folder / "caption.md"))
    if record["kind"] == "figure":
        shown = [drawing(read(folder / "figure.svg")), caption]
    else:
        head, *rows = csv.reader(read(folder / "table.csv").splitlines(keepends=True))
        shown = [caption, table(head, rows)]
    said = ("id", "kind", "suite", "smoke", "runs", "sha256")
    facts = [[key, value] for key, value in record.items() if key not in said]
    runs = [[run.get(fact) for fact in RUN_FACTS] for run in record["runs"]]
    data = base64.b64encode(read(folder / "data.csv").encode()).decode()
    return document(
        record["id"],
        *shown,
        f'<p><a download="{record["id"]}.csv" href="data:text/csv;base64,{data}">'
        "The numbers shown, unrounded (CSV)</a></p>",
        "<h2>Where the numbers come from</h2>",
        table(["", ""], facts),
        table(list(RUN_FACTS.values()), runs) if runs else "<p>No training run is in it.</p>",
    )


def runs_page(suite: str, runs: pd.DataFrame) -> str:
    """The page of a suite's runs: what each took, its code and data, versions and machines."""
    shown = runs.sort_values("run_id").astype(object).where(runs.notna(), None)
    shown["seconds"] = runs["seconds"].map("{:.1f}".format, na_action="ignore")
    shown["peak_rss_bytes"] = (runs["peak_rss_bytes"] / 2**20).map(
        "{:.0f}".format, na_action="ignore"
    )
    columns = {"run_id": RUN_FACTS["run_id"], **RUN_COSTS, **RUN_FACTS}
    return document(
        f"Runs of suite {suite}",
        table(list(columns.values()), shown[list(columns)].to_numpy().tolist()),
        "<h2>Versions</h2>",
        counted(shown["versions"]),
        "<h2>Machines</h2>",
        counted(shown["machine"]),
    )


def counted(records: pd.Series) -> str:
    """A table of JSON objects, one row for those that are the same, with the number of runs."""
    numbers = records.value_counts()
    rows = [{"runs": n, **json.loads(str(value))} for value, n in numbers.items()]
    head = list(dict.fromkeys(key for row in rows for key in row))
    return table(head, [[row.get(key) for key in head] for row in rows])


def document(title: str, *parts: str) -> str:
    """An HTML page that needs no other file."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    body = "\n".join([f"<h1>{escape(title)}</h1>", *parts])
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'


def drawing(svg: str) -> str:
    """The ``<svg>`` element of an SVG file, without the lines above it that HTML does not know."""
    return svg[svg.index("<svg") :]


def paragraphs(caption: str) -> str:
    """A caption as HTML: paragraphs, and bold; other characters stand for themselves."""
    bold = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
    blocks = [bold.sub(r"<strong>\1</strong>", escape(b)) for b in caption.strip().split("\n\n")]
    return "\n".join(f"<p>{block}</p>" for block in blocks)


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """An HTML table; numbers stand right."""
    lines = [f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(cells(row))}</tr>" for row in rows]
    body = "\n".join(lines)
    return f"<table>\n{body}\n</table>"


def cells(row: Sequence[Any]) -> Iterable[str]:
    """The cells of a table's row: numbers right, hashes short (the whole one as its hint)."""
    for value in row:
        text = plain(value)
        if HASH.fullmatch(text):
            yield f'<td title="{text}">{text[:12]}…</td>'
        elif NUMBER.fullmatch(text):
            yield f'<td class="number">{text}</td>'
        else:
            yield f"<td{' class=long' * (len(text) > LONG)}>{escape(text)}</td>"


def plain(value: Any) -> str:
    """A value as a reader expects it: a dash for nothing, JSON for what has parts."""
    if value is None or value != value:  # NaN is the number that is not itself
        return "–"
    if isinstance(value, (bool, dict, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def read(path: Path) -> str:
    """A file's text.

    Raises:
        FigureError: the file is missing.
    """
    if not path.is_file():
        raise FigureError(f"{path} is missing; draw the bundle again")
    return path.read_text(encoding="utf-8")


def main() -> None:
    """Write the pages; a problem is one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("bundles", type=Path, help="folder of all bundles")
    parser.add_argument("suite")
    parser.add_argument("runs", type=Path, help="runs.parquet of the suite")
    parser.add_argument("out", type=Path, help="folder of the pages")
    parser.add_argument("names", nargs="*", help="bundles, without the suite's name")
    given = parser.parse_args()
    try:
        pages = {name: page(given.bundles / f"{name}_{given.suite}") for name in given.names}
        pages["runs"] = runs_page(given.suite, pd.read_parquet(given.runs))
    except FigureError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    given.out.mkdir(parents=True, exist_ok=True)
    for name, text in pages.items():
        (given.out / f"{name}.html").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
