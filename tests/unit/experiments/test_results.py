"""Result tables from run folders."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from experiments import results, rundir
from experiments.errors import UserError

from .conftest import make_run, run_content


def run_folder(root: Path, method: str, seed: int, *, diverged: bool = False) -> Path:
    run = make_run(run_content() | {"seeds": {"weights": seed, "data": seed}}, name=method, lr=0.1)
    metrics = rundir.MetricsFile(root / f"{method}{seed}.jsonl")
    for step in (2, 4):
        row = {"step": step, "tokens": 8 * step, "split": "train", "loss": 1 / 3, "lr": 0.1}
        metrics.append({**row, "grad_norm": None, "seconds": 0.5})
    summary: dict[str, Any] = {
        "run_id": run.run_id,
        "study": run.study,
        "model": "tiny",
        "method": method,
        "method_args": {"b": [1], "a": 2},
        "seeds": {"weights": seed, "data": seed},
        "final": {} if diverged else {"validation_loss": 2.0},
        "state_bytes": {"measured": 3, "predicted": 3},
        "diverged": diverged,
    }
    provenance = dict.fromkeys(results.PROVENANCE, "p")
    rundir.write_outputs(root / run.run_id, run, metrics, summary, provenance)
    return root / run.run_id


def test_tables_are_tidy_and_their_order_is_that_of_the_runs(tmp_path: Path) -> None:
    folders = [
        run_folder(tmp_path, m, s) for m, s in (("gwt", 1), ("adamw", 0), ("gwt", 0), ("gwt", 10))
    ]
    runs, metrics = results.collect(folders)
    assert list(zip(runs.method, runs.seeds_weights, strict=True)) == [
        ("adamw", 0), ("gwt", 0), ("gwt", 1), ("gwt", 10),
    ]  # fmt: skip
    assert json.loads(runs.method_args[0]) == {"a": 2, "b": [1]}
    assert runs.final_validation_loss.tolist() == [2.0] * 4
    assert runs.state_bytes_measured.tolist() == [3] * 4
    assert set(results.PROVENANCE) <= set(runs.columns)
    assert list(metrics.columns) == list(results.METRICS)
    assert metrics.run_id.unique().tolist() == runs.run_id.tolist()
    assert metrics.loss.tolist() == [1 / 3] * 8
    for table, again in zip((runs, metrics), results.collect(folders[::-1]), strict=True):
        pd.testing.assert_frame_equal(table, again)


def test_written_tables_are_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path, "adamw", 0, diverged=True)
    out = tmp_path / "tables"
    monkeypatch.setattr("sys.argv", ["results", "collect", str(out), str(folder)])
    results._main()
    runs, metrics = results.read_tables(out)
    assert "generations" not in runs
    assert runs.diverged.tolist() == [True]
    assert runs.final_perplexity.isna().all()  # the column is there although nobody has a value
    assert metrics.step.tolist() == [2, 4]


def test_what_a_tuned_model_says_stands_in_its_row(tmp_path: Path) -> None:
    folders = [run_folder(tmp_path, "adamw", seed) for seed in (0, 1)]
    said = '{"answer": "sí"}\n{"answer": "no"}\n'
    (folders[0] / "generations.jsonl").write_text(said, encoding="utf-8")
    runs, _ = results.collect(folders)
    assert runs.generations[0] == said and pd.isna(runs.generations[1])


def test_missing_and_unfinished_runs_are_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "adamw", 0)
    with pytest.raises(UserError, match="nowhere: no such run folder"):
        results.collect([tmp_path / "nowhere"])
    with pytest.raises(UserError, match="is there twice"):
        results.collect([folder, folder])
    (folder / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n')
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2: not valid JSON"):
        results.collect([folder])
    (folder / "metrics.jsonl").unlink()
    with pytest.raises(UserError, match=r"metrics\.jsonl is missing: the run has not finished"):
        results.collect([folder])
    (folder / "summary.json").write_text("{")
    with pytest.raises(UserError, match=r"summary\.json: not valid JSON"):
        results.collect([folder])
    with pytest.raises(UserError, match=r"runs\.parquet: no such table; make it with `snakemake`"):
        results.read_tables(tmp_path)
