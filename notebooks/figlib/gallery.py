"""Make ``paper_figures/README.md``: every picture and table, its caption and how to cite it.

Run below ``notebooks/``: ``python -m figlib.gallery [FOLDER]`` (default ``../paper_figures``).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

from .bundle import markdown_text
from .errors import FigureError

ROOT = Path(__file__).resolve().parents[2]
START = {  # question: bundles that answer it
    "Does it fit?": ["step_peaks_pretraining", "memory_models_pretraining"],
    "How good is it?": ["differences_pretraining", "ablations_pretraining"],
    "And on web text?": ["differences_c4"],
    "At what price?": ["quality_memory_pretraining", "extra_time_pretraining"],
    "What do the papers say?": ["printed_ratios_pretraining", "memory_printed_pretraining"],
    "And when tuning?": ["instruction_memory_instruct_tuning", "finetuning_glue"],
    "Why should it work?": ["gradient_energy_pretraining", "singular_values_pretraining"],
}
EXPECTED = {
    "figure": ("figure.pdf", "figure.svg", "figure.png"),
    "table": ("table.csv", "table.md", "table.tex"),
}
COMMON = ("data.csv", "caption.md", "provenance.json")
TABLES = "tables"  # result tables of suites lie beside the bundles
LONGEST_TABLE = 20  # rows that the page shows unasked
SUITE_ORDER = ("paper", "cpu", "smoke", "ci")


def read_bundles(folder: Path) -> list[dict[str, Any]]:
    """The provenance of every bundle in ``folder``: results before smoke runs, figures first.

    Raises:
        FigureError: a bundle lacks a file; the message names it.
    """
    bundles = []
    held = (p for p in folder.iterdir() if p.is_dir() and p.name != TABLES)
    for path in sorted(p for p in held if not p.name.startswith(".")):
        record = path / "provenance.json"
        if not record.is_file():
            raise FigureError(f"{path}: no provenance.json, so this is no bundle; remove it")
        bundle = json.loads(record.read_text(encoding="utf-8"))
        for name in (*EXPECTED[bundle["kind"]], *COMMON):
            if not (path / name).is_file():
                raise FigureError(f"{path}: {name} is missing; draw the bundle again")
        bundles.append(bundle | {"caption": (path / "caption.md").read_text(encoding="utf-8")})
    rank = {suite: place for place, suite in enumerate(SUITE_ORDER)}
    keys = ("suite", "kind", "id")
    return sorted(bundles, key=lambda b: (rank.get(b["suite"], -1), *(b[key] for key in keys)))


def start_here(there: list[str]) -> list[str]:
    """What answers the commonest questions, of the bundles that are there."""
    lines = []
    for question, names in START.items():
        found = [f"[`{name}`](#{anchor(name)})" for name in names if name in there]
        lines += [f"- {question} {', '.join(found)}"] if found else []
    return ["**Start here:**", "", *lines, "", "All:", ""] if lines else []


def page(folder: Path) -> str:
    """The gallery as Markdown."""
    citation = read_citation(ROOT / "CITATION.cff")
    bundles = read_bundles(folder)
    lines = [
        "# Figures and tables",
        "",
        "<!-- Made by `python -m figlib.gallery`; do not edit. -->",
        "",
        "Each folder here holds one figure (PDF, SVG, PNG) or table (CSV, Markdown, LaTeX), the "
        "data that it shows (`data.csv`), its caption and where every number comes from "
        "(`provenance.json`: runs, commit, data). `tables/` has the result tables of whole suites, "
        "one row a run with its complete configuration; `make figures` draws all that is here from "
        "them. Cite a figure by its identifier:",
        "",
        "```bibtex",
        bibtex(citation),
        "```",
        "",
        *start_here([str(bundle["id"]) for bundle in bundles]),
    ]
    suites = list(dict.fromkeys(b["suite"] for b in bundles))
    lines += [f"- [`{b['id']}`](#{anchor(b['id'])}): {title(b)}" for b in bundles]
    for suite in suites:
        lines += ["", f"## Suite {markdown_text(suite)}"]
        for bundle in (b for b in bundles if b["suite"] == suite):
            lines += ["", *section(folder, bundle, citation)]
    return "\n".join(lines) + "\n"


def section(folder: Path, bundle: dict[str, Any], citation: dict[str, Any]) -> list[str]:
    """One bundle: picture or table, caption, files, citation."""
    name = bundle["id"]
    if bundle["kind"] == "figure":
        shown = f"[![{title(bundle)}]({name}/figure.png)]({name}/figure.pdf)"
    else:
        shown = folded((folder / name / "table.md").read_text(encoding="utf-8").strip())
    files = (*EXPECTED[bundle["kind"]], *COMMON)
    commits = sorted({run["commit"][:10] for run in bundle["runs"] if run["commit"]})
    code = f", commit {', '.join(commits)}" if commits else ""
    cite = (
        f"{', '.join(citation['authors'])}, *{citation['title']}*, version "
        f"{citation['version']}, {bundle['kind']} `{name}`{code}"
    )
    return [
        f"### {name}",
        "",
        shown,
        "",
        bundle["caption"].strip(),
        "",
        f"Drawn by [{bundle['notebook']}](../{bundle['notebook']}). Files: "
        + ", ".join(f"[{f}]({name}/{f})" for f in files)
        + ".",
        "",
        f"Cite as: {cite}." if not bundle["smoke"] else "A smoke run: nothing to cite.",
    ]


def folded(table: str) -> str:
    """A long table folded away behind its number of rows."""
    rows = table.count("\n") - 1
    if rows <= LONGEST_TABLE:
        return table
    return f"<details><summary>Table of {rows} rows</summary>\n\n{table}\n\n</details>"


def title(bundle: dict[str, Any]) -> str:
    """The bold first sentence of the caption."""
    bold = re.match(r"\*\*(.+?)\.?\*\*", bundle["caption"], re.DOTALL)
    if not bold:
        raise FigureError(f"bundle {bundle['id']}: its caption must begin with a bold title")
    return " ".join(bold.group(1).split())


def anchor(heading: str) -> str:
    """GitHub's anchor of a heading made of a bundle's identifier."""
    return heading.lower().replace(".", "")


def read_citation(path: Path) -> dict[str, Any]:
    """Authors, title and version of CITATION.cff.

    Raises:
        FigureError: a field is missing.
    """
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    for key in ("authors", "title", "version"):
        if key not in content:
            raise FigureError(f"{path}: no {key!r}, which citing a figure needs")

    def name(author: dict[str, str]) -> str:
        if "name" in author:
            return author["name"]
        return f"{author['given-names']} {author['family-names']}"

    return {
        "authors": [name(author) for author in content["authors"]],
        "title": content["title"],
        "version": str(content["version"]),
    }


def bibtex(citation: dict[str, Any]) -> str:
    """A BibTeX entry of the repository; the note is where the figure's identifier goes."""
    authors = " and ".join(f"{{{author}}}" for author in citation["authors"])
    return (
        "@software{memopt,\n"
        f"  author  = {{{authors}}},\n"
        f"  title   = {{{citation['title']}}},\n"
        f"  version = {{{citation['version']}}},\n"
        "  note    = {figure or table: its identifier, and the commit below its caption}\n"
        "}"
    )


def main() -> None:
    """Write the gallery page; a problem is one line on stderr and exit status 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "paper_figures")
    folder = parser.parse_args().folder
    try:
        if not folder.is_dir():
            raise FigureError(f"{folder}: no such folder; it is where notebooks write bundles")
        (folder / "README.md").write_text(page(folder), encoding="utf-8")
    except FigureError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
