"""Draw every figure again from the tables that are there; nothing is trained.

Run at the repository's root: ``PYTHONPATH=notebooks python -m figlib.redraw [SUITE...]``. A suite's
tables are those of ``results/`` or, as on a fresh clone, those in git (`experiments.tables`). Each
notebook keeps the outputs of the suite that its first cell names, without what changes from one
execution to the next.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
import pandas as pd
import papermill
import yaml
from papermill.exceptions import PapermillExecutionError

from experiments import tables
from experiments.errors import UserError

from . import compare, gallery
from .errors import FigureError

NOTEBOOKS = gallery.ROOT / "notebooks"
INJECTED = "injected-parameters"  # papermill's tag of the cell that it adds


def suites() -> list[str]:
    """Suites with tables, in git or of runs made here."""
    made = (gallery.ROOT / "results").glob("*/tables/runs.parquet")
    return sorted({*tables.kept(), *(path.parents[1].name for path in made)})


def notebooks_of(suite: str, folder: Path) -> list[str]:
    """Notebooks that have something to show of a suite's tables, as the workflow chooses them."""
    columns = ["run_id", "task", "tuning", "study", "spec"]
    runs = pd.read_parquet(folder / "runs.parquet", columns=columns)
    started = {json.loads(spec)["model"].get("run") for spec in runs.spec}  # means, not compared
    final = runs[~runs.tuning & ~runs.run_id.isin(started)]
    tasks = {*final.task} | ({"tuning"} if runs.tuning.any() else set())
    if (folder / "memory.parquet").is_file():  # a suite of runs alone may leave bytes to another
        tasks.add(None)
    if (folder / "gradients.parquet").is_file():
        tasks.add("gradients")
    if (runs.study.str.startswith(compare.ABLATION) & (runs.study != compare.CONTROL)).any():
        tasks.add("ablation")
    if (folder / "micro_batches.parquet").is_file():
        tasks.add("micro_batches")
    declared = yaml.safe_load((NOTEBOOKS / "bundles.yaml").read_text(encoding="utf-8"))
    return [
        name
        for name, entry in declared.items()
        if entry.get("task") in tasks and entry.get("suite") in (None, suite)
    ]


def execute(name: str, suite: str, folder: Path, bundles: Path) -> nbformat.NotebookNode:
    """Runs a notebook on the tables in ``folder``; its bundles go to ``bundles``.

    Raises:
        FigureError: a cell fails.
    """
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"  # this environment's kernel, not the user's
    with tempfile.TemporaryDirectory() as log:
        try:
            return papermill.execute_notebook(
                NOTEBOOKS / f"{name}.ipynb",
                Path(log) / "executed.ipynb",
                {"suite": suite, "tables": str(folder), "bundles": str(bundles)},
                cwd=NOTEBOOKS,
                progress_bar=False,
            )
        except PapermillExecutionError as error:
            raise FigureError(f"{name}.ipynb, suite {suite}: {error}") from None


def outputs(executed: nbformat.NotebookNode) -> list[list[nbformat.NotebookNode]]:
    """What each code cell showed: text and pictures, without counters, times and messages."""
    shown = []
    for cell in executed.cells:
        if cell.cell_type == "code" and INJECTED not in cell.metadata.get("tags", []):
            kept = [o for o in cell.outputs if o.output_type in ("display_data", "execute_result")]
            shown.append([nbformat.v4.new_output("display_data", data=o.data) for o in kept])
    return shown


def own_suite(name: str) -> str:
    """The suite that a notebook's first code cell names."""
    parameters = papermill.inspect_notebook(NOTEBOOKS / f"{name}.ipynb")
    return str(ast.literal_eval(parameters["suite"]["default"]))


def save_outputs(name: str, shown: list[list[nbformat.NotebookNode]]) -> None:
    """Writes outputs into ``notebooks/<name>.ipynb``; its cells stay as they are."""
    path = NOTEBOOKS / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell, outputs in zip(code, shown, strict=True):
        cell.outputs, cell.execution_count = outputs, None
    nbformat.write(notebook, path)


def redraw(suite: str, bundles: Path) -> None:
    """Draws a suite's bundles and saves the outputs of the notebooks that show it."""
    folder = tables.find(suite)
    for name in notebooks_of(suite, folder):
        print(f"{suite}: {name}.ipynb, from {folder.relative_to(gallery.ROOT)}", flush=True)
        shown = outputs(execute(name, suite, folder, bundles))
        if own_suite(name) == suite:
            save_outputs(name, shown)


def main() -> None:
    """Draw all; a problem is told on stderr, with exit status 2."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help="default: all with tables")
    bundles = gallery.ROOT / "paper_figures"
    try:
        for suite in parser.parse_args().suites or suites():
            redraw(suite, bundles)
        (bundles / "README.md").write_text(gallery.page(bundles), encoding="utf-8")
    except (FigureError, UserError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
