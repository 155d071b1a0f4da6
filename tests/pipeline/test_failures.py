"""Kills, broken cells, wrong words and machines that are too small."""

import json
import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from .conftest import Project

TABLES = "results/smoke/tables/runs.parquet"


def test_killed_training_goes_on_where_it_was(
    fresh: Project, finished_stub: tuple[Project, str], wait_until: Callable
) -> None:
    fresh.edit("suite.json", '"level": 2', '"seconds": 30, "level": 2')
    step = fresh.root / "results/smoke/work/gwt-2/step"
    workflow = subprocess.Popen(
        fresh.command(TABLES), cwd=fresh.root, start_new_session=True, stdout=subprocess.DEVNULL
    )
    wait_until(lambda: step.exists() and int(step.read_text()) >= 2)
    os.killpg(workflow.pid, signal.SIGKILL)
    workflow.wait()
    reached = int(step.read_text())
    assert reached < 40 and not (fresh.root / TABLES).exists()

    fresh.edit("suite.json", '"seconds": 30', '"seconds": 0')
    fresh.run(TABLES)
    assert f"gwt from {reached}, 1 threads" in fresh.read("trained.log")
    undisturbed = finished_stub[0].read(TABLES)
    assert fresh.read(TABLES).replace('"seconds": 0, ', "") == undisturbed


def test_failed_run_leaves_the_others_and_shows_its_log(fresh: Project) -> None:
    fresh.edit("suite.json", '"level": 2', '"steps": 1, "level": 2')
    fresh.edit(
        "experiments/pretrain.py", "total = 40", "total = 40 if 'steps' not in spec else 'x'"
    )
    done = fresh.snakemake(TABLES)
    assert done.returncode != 0
    assert "TypeError" in done.stdout  # the run's own last words
    assert (fresh.root / "results/smoke/runs/tuned-1/summary.json").exists()
    assert not (fresh.root / TABLES).exists()


def test_broken_cell_leaves_its_notebook_and_no_stale_figure(finished: Project) -> None:
    figure = finished.root / "paper_figures/curves_smoke/figure.svg"
    gallery = finished.read("paper_figures/README.md")
    assert figure.exists()
    finished.edit("notebooks/curves.ipynb", "import figlib", "assert False, 'broken on purpose'")
    done = finished.snakemake()
    assert done.returncode != 0 and "broken on purpose" in done.stdout
    assert not figure.exists()
    assert finished.read("paper_figures/README.md") == gallery
    notebook = json.loads(finished.read("results/smoke/notebooks/curves.ipynb"))
    errors = [
        output["evalue"]
        for cell in notebook["cells"]
        for output in cell.get("outputs", [])
        if output["output_type"] == "error"
    ]
    assert errors == ["broken on purpose"]


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("suite=unknown", "error: unknown suite 'unknown'; did you mean 'known'?"),
        (
            "suit=cpu",
            "error: unknown setting 'suit' (there are: suite, only); did you mean 'suite'?",
        ),
        ("suite=3", "error: Error validating config file."),
    ],
)
def test_wrong_settings_get_the_right_words(fresh: Project, setting: str, words: str) -> None:
    assert fresh.refusal("--dry-run", "--config", setting) == words


@pytest.mark.parametrize(
    ("need", "words"),
    [
        ('"threads": 64', "gwt-2 needs 64 and there are 2 cores (see --cores)"),
        ('"gpus": 3', "gwt-2 needs 3 and there are 2 GPUs (see nvidia-smi"),
        ('"disk_mb": 1000000000', "suite 'smoke' needs about 1,111,111,112 MB of disk"),
    ],
)
def test_a_machine_too_small_is_refused_before_the_start(
    fresh: Project, need: str, words: str
) -> None:
    fresh.edit("suite.json", '"level": 2', f'{need}, "level": 2')
    refusal = fresh.refusal(TABLES, CUDA_VISIBLE_DEVICES="0,1")
    assert words in refusal and "--config only=" in refusal
    assert not (fresh.root / "trained.log").exists()


def test_missing_data_is_named_before_the_start(fresh: Project) -> None:
    fresh.edit("suite.json", '"runs": [', '"missing": "source x: no files", "runs": [')
    refusal = fresh.refusal(TABLES)
    assert "lacks data. source x: no files." in refusal and "--config only=" in refusal
    assert not (fresh.root / "trained.log").exists()


def test_a_part_that_fits_is_run(fresh: Project) -> None:
    fresh.edit("suite.json", '"level": 2', '"threads": 64, "level": 2')
    fresh.run(TABLES, "--config", "only=adamw")
    assert fresh.read("trained.log") == "adamw from 0, 1 threads\n"
