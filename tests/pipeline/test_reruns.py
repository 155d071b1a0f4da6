"""What makes a job run again, and what does not."""

import re
import shutil

from .conftest import Project

TABLES = "results/smoke/tables/runs.parquet"
FIGURES = {"notebook_curves": 1, "gallery": 1, "pages": 1}


def test_first_run_goes_from_data_to_gallery(finished_stub: tuple[Project, str]) -> None:
    project, printed = finished_stub
    started = [line.split(",") for line in project.read("trained.log").splitlines()]
    assert sorted(start for start, _ in started) == ["adamw from 0", "gwt from 0", "tuned from 0"]
    assert {start.split()[0]: threads for start, threads in started} == {
        "adamw": " 1 threads",
        "gwt": " 1 threads",
        "tuned": " 2 threads",
    }
    # tuned starts from adamw's model, so it comes after it
    assert started[-1][0] == "tuned from 0"
    assert [path.parent.parent.name for path in project.root.rglob("model/config.json")] == [
        "adamw-0"
    ]
    assert project.read("paper_figures/README.md") == "curves_smoke\ntuned_smoke"
    assert "Conda environments: ignored" in printed
    assert not list((project.root / ".snakemake/conda").glob("*"))


def test_second_run_has_nothing_to_do(finished: Project) -> None:
    before = finished.read("trained.log")
    assert "Nothing to be done" in finished.run()
    assert finished.read("trained.log") == before
    # nor have new times, where the content stays
    for path in ("notebooks/figlib/__init__.py", "notebooks/curves.ipynb", "suite.json"):
        (finished.root / path).touch()
    assert finished.planned() == {}


def test_style_of_plots_remakes_figures_only(finished: Project) -> None:
    finished.edit("notebooks/figlib/__init__.py", '"blue"', '"red"')
    assert finished.planned() == FIGURES


def test_one_hyperparameter_trains_one_run(finished: Project) -> None:
    finished.edit("suite.json", '"level": 2', '"level": 3')
    assert finished.planned() == {
        "train": 1,
        "collect": 1,
        "memory": 1,
        "memory_steps": 1,
        **FIGURES,
    }
    finished.run(TABLES)
    assert finished.read("trained.log").splitlines()[-1].startswith("gwt from 0")
    rows = finished.read(TABLES)
    assert '"level": 3' in rows and '"level": 2' not in rows


def test_a_run_taken_out_trains_nothing(finished: Project) -> None:
    finished.edit("suite.json", '{"method": "gwt", "level": 2},', "")
    # what is left of pretraining is only what the tuned run starts from: that has no curves
    tables = {"collect": 1, "memory": 1, "memory_steps": 1}
    assert finished.planned() == {**tables, "gallery": 1, "pages": 1}


def test_comments_and_labels_train_nothing(finished: Project) -> None:
    for rule in ("data", "train", "tables", "figures", "report"):
        path = finished.root / f"workflow/rules/{rule}.smk"
        edited = re.sub(r"( +)shell:", r"\1# a comment\n\n\1shell:", path.read_text())
        path.write_text(edited.replace("2>&1", " 2>&1"))
    finished.edit("suite.json", '"level": 2', '"mem_mb": 20, "level": 2')
    (finished.root / "experiments/pretrain.py").open("a").write("# a comment\n")
    assert finished.planned() == {}


def test_figures_of_a_fresh_clone_are_not_taken_for_results(finished: Project) -> None:
    # paper_figures/ is committed, results/ and .snakemake/ are not
    for folder in ("results", ".snakemake"):
        shutil.rmtree(finished.root / folder)
    assert finished.planned() == {
        "train": 3,
        "export_model": 1,
        "collect": 1,
        "memory": 1,
        "memory_steps": 1,
        **FIGURES,
    }


def test_suites_share_data_and_leave_each_other_alone(finished: Project) -> None:
    other = ["--config", "suite=other"]
    assert finished.planned(*other) == {
        "train": 3,
        "export_model": 1,
        "collect": 1,
        "memory": 1,
        "memory_steps": 1,
        **FIGURES,
    }
    finished.run("results/other/tables/runs.parquet", *other)
    assert finished.planned() == {}


def test_a_suite_can_be_run_piece_by_piece(fresh: Project) -> None:
    fresh.run(TABLES, "--config", "only=gwt")
    assert fresh.read(TABLES).count("method") == 1
    # what is finished stays in the tables
    assert fresh.planned("--config", "only=adamw")["train"] == 1
    # with what it starts from
    assert fresh.planned("--config", "only=tuned")["train"] == 2
    fresh.run(TABLES)
    assert fresh.read(TABLES).count("method") == 3
    assert fresh.read("trained.log").count("gwt") == 1
