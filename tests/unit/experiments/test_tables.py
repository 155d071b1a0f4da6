"""Tables that git keeps: compact, complete, of one suite, found where results are not."""

import json
from pathlib import Path

import pandas as pd
import pytest

from experiments import results, tables
from experiments.errors import UserError

from .test_results import run_folder


def collected(root: Path, suite: str = "test") -> Path:
    """Tables of two runs, as `results.collect` makes them."""
    folder = root / "collected"
    folder.mkdir()
    runs, metrics = results.collect([run_folder(root, m, 0) for m in ("adamw", "gwt")])
    runs.assign(suite=suite, tokens_per_second=3.5).to_parquet(folder / "runs.parquet")
    metrics.to_parquet(folder / "metrics.parquet")
    return folder


def test_kept_tables_are_the_same_numbers_without_speeds(tmp_path: Path) -> None:
    source, target = collected(tmp_path), tmp_path / "kept" / "test"
    files = tables.keep(source, "test", target)
    assert [path.name for path in files] == ["metrics.parquet", "runs.parquet"]
    before, after = results.read_tables(source), results.read_tables(target)
    for old, new in zip(before, after, strict=True):
        blank = [name for name in tables.SPEEDS if name in old]
        assert blank and new[blank].isna().all(axis=None)
        pd.testing.assert_frame_equal(old.drop(columns=blank), new.drop(columns=blank))
    (target / "stale.parquet").write_text("left over")
    measured = pd.DataFrame({"run_id": ["methods-adamw"], "share": [0.25]})
    measured.to_parquet(target / "gradients.parquet")  # by a command of its own: it stays
    tables.keep(source, "test", target, speeds=True)
    pd.testing.assert_frame_equal(measured, pd.read_parquet(target / "gradients.parquet"))
    for old, new in zip(before, results.read_tables(target), strict=True):
        pd.testing.assert_frame_equal(old, new)
    assert not (target / "stale.parquet").exists()
    run = tables.run_spec(after[0].iloc[1])
    assert run.method.name == "gwt"
    assert run.run_id == after[0].run_id[1]


def test_what_cannot_be_kept_is_named_and_leaves_the_old_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = collected(tmp_path), tmp_path / "kept" / "test"
    kept = {path: path.read_bytes() for path in tables.keep(source, "test", target)}
    with pytest.raises(UserError, match="holds runs of the suite 'test', not 'cpu'"):
        tables.keep(source, "cpu", target)
    monkeypatch.setattr(tables, "LARGEST_SUITE", 100)
    with pytest.raises(UserError, match=r"bytes, more than the 100 that git should hold"):
        tables.keep(source, "test", target)
    monkeypatch.undo()
    runs = pd.read_parquet(source / "runs.parquet").drop(columns="spec")
    runs.to_parquet(source / "runs.parquet")
    with pytest.raises(UserError, match="no column 'spec'; collect the runs again"):
        tables.keep(source, "test", target)
    assert kept == {path: path.read_bytes() for path in sorted(target.iterdir())}
    assert [path.name for path in target.parent.iterdir()] == ["test"]


def test_added_runs_stand_among_those_in_git_as_if_kept_together(tmp_path: Path) -> None:
    whole = collected(tmp_path)
    runs, metrics = results.read_tables(whole)
    runs["weights_sha256"] = ["a", "b"]
    runs.to_parquet(whole / "runs.parquet")
    parts = {name: tmp_path / name for name in ("adamw", "gwt")}
    for method, folder in parts.items():
        folder.mkdir()
        runs[runs.method == method].to_parquet(folder / "runs.parquet")
        metrics[metrics.method == method].to_parquet(folder / "metrics.parquet")
    (parts["gwt"] / "memory.parquet").write_bytes((whole / "runs.parquet").read_bytes())
    together, target = tmp_path / "kept" / "together", tmp_path / "kept" / "test"
    tables.keep(whole, "test", together)
    tables.keep(parts["gwt"], "test", target)
    for source in (parts["adamw"], whole):  # the second brings nothing new
        tables.keep(source, "test", target, add=True)
        assert (target / "memory.parquet").is_file()
        for old, new in zip(
            results.read_tables(together), results.read_tables(target), strict=True
        ):
            pd.testing.assert_frame_equal(old, new, check_dtype=False)
    elsewhere = pd.DataFrame({"run_id": runs.run_id, "loss": [1.0, 2.0]})
    for row, loss in ((0, 1.0), (1, 3.0)):
        elsewhere[row : row + 1].assign(loss=loss).to_parquet(whole / "elsewhere.parquet")
        tables.keep(whole, "test", target, add=True)
    joined = tables.read_further(target, "elsewhere")
    assert joined is not None and joined.loss.tolist() == [1.0, 3.0]
    runs.assign(weights_sha256="other").to_parquet(whole / "runs.parquet")
    with pytest.raises(UserError, match="trained at commit p, it ends with other weights than"):
        tables.keep(whole, "test", target, add=True)


def test_results_made_here_come_before_those_in_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setattr(tables, "KEPT", tmp_path / "kept")
    source = collected(tmp_path)
    with pytest.raises(UserError, match="no tables of the suite 'test' in results/ or paper_"):
        tables.find("test")
    tables.keep(source, "test", tables.KEPT / "test")
    assert tables.kept() == ["test"]
    with pytest.raises(UserError, match="did you mean 'test'"):
        tables.find("tst")
    made = tmp_path / "results" / "test" / "tables"
    made.mkdir(parents=True)
    assert tables.find("test") == tables.KEPT / "test"  # the runs have not been collected yet
    (source / "runs.parquet").rename(made / "runs.parquet")
    assert tables.find("test") == made


@pytest.mark.parametrize("suite", tables.kept())
def test_every_row_in_git_has_its_complete_configuration(suite: str) -> None:
    """As plain values: code of another commit may ask for keys that there were not yet."""
    runs, metrics = results.read_tables(tables.KEPT / suite)
    assert set(runs.suite) == {suite}
    assert set(metrics.run_id) <= set(runs.run_id)
    for _, row in runs.iterrows():
        run = json.loads(row.spec)
        assert {"model", "method", "data", "train", "seeds", "threads"} <= set(run)
        assert (run["study"], run["method"]["name"], run["method"]["lr"]) == (
            row.study, row.method, row.lr,
        )  # fmt: skip
        assert run["train"]["steps"] >= row.steps  # fewer where it diverged
        for name in ("versions", "machine"):
            assert json.loads(row[name])


def test_a_configuration_that_todays_code_does_not_read_names_its_commit(tmp_path: Path) -> None:
    runs, _ = results.collect([run_folder(tmp_path, "adamw", 0)])
    row = runs.iloc[0].copy()
    row["spec"] = row.spec.replace('"threads"', '"threadz"')
    with pytest.raises(UserError, match=r"'threadz'(.|\n)*made at commit p, which reads it"):
        tables.run_spec(row)
