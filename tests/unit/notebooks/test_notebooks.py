"""Notebooks: well-formed, and executed by papermill on made-up tables as the workflow does it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pandas as pd
import pytest
import yaml
from figlib import gallery

from . import fixture_tables

REPO = Path(__file__).resolve().parents[3]
NOTEBOOKS = sorted((REPO / "notebooks").glob("*.ipynb"))
DECLARED = yaml.safe_load((REPO / "notebooks/bundles.yaml").read_text())


def execute(name: str, tables: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Run a notebook on ``tables``; bundles and the executed copy land in ``out``."""
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "papermill", f"notebooks/{name}.ipynb", str(out / "log.ipynb")]
    command += ["--cwd", "notebooks", "--no-progress-bar", "-p", "suite", "made-up"]
    command += ["-p", "tables", str(tables), "-p", "bundles", str(out)]
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, env=environment)


def test_the_list_of_bundles_names_every_notebook() -> None:
    assert sorted(DECLARED) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_valid_and_takes_parameters(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    tagged = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    assert len(tagged) == 1 and tagged[0].cell_type == "code"
    for name in ("suite = ", "tables = ", "bundles = "):
        assert name in tagged[0].source
    assert notebook.metadata.kernelspec.name == "python3"
    prose = [c for c in notebook.cells if c.cell_type == "markdown"]
    assert len(prose) >= 3, "a notebook explains what it shows"


@pytest.mark.parametrize("name", DECLARED)
def test_notebook_writes_the_bundles_it_declares(name: str, tmp_path: Path) -> None:
    fixture_tables.write(tmp_path / "tables")
    done = execute(name, tmp_path / "tables", tmp_path / "out")
    assert done.returncode == 0, done.stderr[-3000:]
    made = {b["id"]: b["kind"] for b in gallery.read_bundles(tmp_path / "out")}
    assert made == {f"{k}_made-up": v["kind"] for k, v in DECLARED[name]["bundles"].items()}


@pytest.mark.slow  # each starts a kernel
def test_missing_and_empty_tables_are_named(tmp_path: Path) -> None:
    done = execute("convergence", tmp_path / "none", tmp_path / "out")
    assert done.returncode != 0 and "runs.parquet" in done.stderr
    fixture_tables.write(tmp_path / "tables")
    runs = pd.read_parquet(tmp_path / "tables/runs.parquet")
    runs[runs.task == "finetune"].to_parquet(tmp_path / "tables/runs.parquet")
    done = execute("convergence", tmp_path / "tables", tmp_path / "out")
    assert done.returncode != 0 and "FigureError: pretraining runs: no rows" in done.stderr
    log = json.loads((tmp_path / "out/log.ipynb").read_text())  # the log of a failure stays
    assert any(c.get("outputs") for c in log["cells"])
    assert not (tmp_path / "out/convergence_made-up").exists()
