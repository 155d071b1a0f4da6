"""Notebooks: well-formed; on made-up tables as the workflow runs them; fresh on those in git."""

import base64
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
import yaml
from figlib import gallery, redraw

from experiments import tables

from . import fixture_tables

REPO = Path(__file__).resolve().parents[3]
PAPER_FIGURES = REPO / "paper_figures"
NOTEBOOKS = sorted((REPO / "notebooks").glob("*.ipynb"))
DECLARED = yaml.safe_load((REPO / "notebooks/bundles.yaml").read_text())
# suite and notebook, for all suites with tables in git
KEPT = [
    (suite, name)
    for suite in tables.kept()
    for name in redraw.notebooks_of(suite, tables.KEPT / suite)
]


def is_shown(case: tuple[str, str]) -> bool:
    """Whether the notebook's committed outputs are those of the suite."""
    return redraw.own_suite(case[1]) == case[0]


SHOWN = [case[1] for case in KEPT if is_shown(case)]


def quick_if(parameters: list, quick: list[bool]) -> list:
    """Each starts a kernel, which takes seconds: the others are slow tests."""
    marks = [() if q else pytest.mark.slow for q in quick]
    return [pytest.param(p, marks=m) for p, m in zip(parameters, marks, strict=True)]


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


@pytest.mark.parametrize("name", quick_if(list(DECLARED), [n not in SHOWN for n in DECLARED]))
def test_notebook_writes_the_bundles_it_declares(name: str, tmp_path: Path) -> None:
    fixture_tables.write(tmp_path / "tables")
    done = execute(name, tmp_path / "tables", tmp_path / "out")
    assert done.returncode == 0, done.stderr[-3000:]
    made = {b["id"]: b["kind"] for b in gallery.read_bundles(tmp_path / "out")}
    assert made == {f"{k}_made-up": v["kind"] for k, v in DECLARED[name]["bundles"].items()}


@pytest.mark.parametrize("case", quick_if(KEPT, [is_shown(k) for k in KEPT]), ids="-".join)
def test_figures_and_outputs_in_git_are_those_of_the_tables_in_git(
    case: tuple[str, str], tmp_path: Path
) -> None:
    """A stale one is drawn again by `make figures`."""
    suite, name = case
    executed = redraw.execute(name, suite, tables.KEPT / suite, tmp_path)
    committed = [
        bundle
        for bundle in gallery.read_bundles(PAPER_FIGURES)
        if (bundle["suite"], bundle["notebook"]) == (suite, f"notebooks/{name}.ipynb")
    ]
    made = gallery.read_bundles(tmp_path)
    assert [b["id"] for b in made] == [b["id"] for b in committed]
    for new, old in zip(made, committed, strict=True):
        assert new | {"sha256": 0} == old | {"sha256": 0}  # caption and runs among it
        here, there = (pd.read_csv(f / old["id"] / "data.csv") for f in (tmp_path, PAPER_FIGURES))
        # exponentials may differ in their last bit from processor to processor
        pd.testing.assert_frame_equal(here, there, rtol=1e-12, atol=0)
    if is_shown(case):
        notebook = nbformat.read(REPO / f"notebooks/{name}.ipynb", as_version=4)
        assert_same_outputs(redraw.outputs(executed), redraw.outputs(notebook))
        assert {c.execution_count for c in notebook.cells if c.cell_type == "code"} == {None}


def assert_same_outputs(executed: list, committed: list) -> None:
    """Text to the letter, pictures to rendering."""
    for new, old in zip(executed, committed, strict=True):
        assert [sorted(o.data) for o in new] == [sorted(o.data) for o in old]
        for here, there in zip(new, old, strict=True):
            for kind in here.data:
                if kind == "image/png":
                    a, b = (
                        plt.imread(io.BytesIO(base64.b64decode(o.data[kind])))
                        for o in (here, there)
                    )
                    assert a.shape == b.shape
                    assert np.abs(a - b).mean() < 0.005  # 1 is from black to white
                else:
                    assert here.data[kind] == there.data[kind]


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
