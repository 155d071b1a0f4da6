"""A row of a table, run again from what the table holds: the same bits, or which differ."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
import torch

from experiments import pretrain, rerun, results, rundir, session, spec, tables
from experiments.data.prepare import prepare
from experiments.errors import UserError

from .conftest import make_run, run_content
from .test_results import run_folder


@pytest.fixture(autouse=True)
def _leave_torch_as_it_was() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


def test_a_kept_row_is_trained_again_to_the_same_bits(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A study of two runs, its tables as git keeps them, and one command."""
    folders = []
    for method, args in (("gwt", {"level": 1}), ("adamw", {})):
        run = make_run(run_content(), name=method, lr=1e-2, args=args)
        folders.append(tmp_path / "runs" / run.run_id)
        work = tmp_path / "work" / run.run_id
        work.mkdir(parents=True)
        session.execute(run, folders[-1], prepared, work, pretrain.make_task)
    made, kept = tmp_path / "made", tmp_path / "kept"
    made.mkdir()
    for name, table in zip(("runs", "metrics"), results.collect(folders), strict=True):
        table.to_parquet(made / f"{name}.parquet", index=False)
    tables.keep(made, "test", kept)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(rerun.__file__).parents[1]))
    data = tmp_path / "data" / "prepared" / run.data.data_id
    data.parent.mkdir(parents=True)
    data.symlink_to(prepared)
    command = ["rerun", "test", folders[0].name, "--tables", str(kept)]
    monkeypatch.setattr(sys, "argv", command)
    rerun._main()
    assert "every number is that of" in capsys.readouterr().out
    again = tmp_path / "results" / "rerun" / "test" / "runs" / folders[0].name
    assert again.is_dir() and again != folders[0]

    # a number that is not the run's: told, with status 1, by the command that found nothing before
    monkeypatch.setattr(rerun, "train", lambda run, root: again)
    runs = pd.read_parquet(kept / "runs.parquet")
    runs.loc[runs.method == "gwt", "final_validation_loss"] *= 1 + 2**-52
    runs.to_parquet(kept / "runs.parquet", index=False)
    with pytest.raises(SystemExit) as ended:
        rerun._main()
    assert ended.value.code == 1
    assert "differs: final_validation_loss: " in capsys.readouterr().out


def test_a_row_in_git_is_trained_again_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The smallest: Adam on a perceptron, 100 updates of scikit-learn's digits, full batch."""
    folder = tables.KEPT / "vision"
    row = rerun.row_of(results.read_tables(folder)[0], "full_constant-digits_mlp-adamw-s0-4c99bef2")
    then = conditions(json.loads(row.machine), json.loads(row.versions))
    here = conditions(rundir.machine(), rundir.versions())
    if then != here:
        pytest.skip(f"the same bits are promised for {then} only, here is {here}")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(rerun.__file__).parents[1]))
    data = tables.run_spec(row).data
    prepare(data, tmp_path / "data" / "prepared" / data.data_id)
    numbers, _ = rerun.rerun(folder, row.run_id, tmp_path / "again")
    assert numbers == []


def test_differences_and_their_possible_causes_are_named(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "adamw", 0)
    (folder / "provenance.json").write_text(json.dumps(provenance(torch="2.13.0")))
    (row,), metrics = rows(folder)
    assert rerun.differing(row, metrics, row, metrics) == []
    other = metrics.assign(loss=[1 / 3, 0.25], seconds=[9.0, 9.0])
    assert rerun.differing(row, metrics, row, other) == [
        "metrics: loss in 1 of 2 rows, first at step 4 (train): "
        f"{metrics.loss[1]!r} in the table, {other.loss[1]!r} now"
    ]
    assert rerun.differing(row, metrics, row, other[:1]) == ["metrics: 2 rows in the table, 1 now"]
    (folder / "provenance.json").write_text(json.dumps(provenance(torch="2.14.0")))
    (new,), _ = rows(folder)
    assert rerun.differing(row, metrics, new, metrics) == []
    assert rerun.conditions(row, new) == ["versions: torch 2.13.0 in the table, 2.14.0 now"]


def test_an_unknown_row_is_named(tmp_path: Path) -> None:
    (row,), _ = rows(run_folder(tmp_path, "adamw", 0))
    with pytest.raises(UserError, match=f"no run 'x{row.run_id}'; did you mean '{row.run_id}'"):
        rerun.row_of(pd.DataFrame([row]), f"x{row.run_id}")
    assert spec.to_plain(tables.run_spec(row))["method"]["name"] == "adamw"


def test_what_a_run_starts_from_is_trained_and_handed_on_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, then = (run_folder(tmp_path, m, 0) for m in ("adamw", "gwt"))
    for folder in (start, then):
        (folder / "provenance.json").write_text(json.dumps(provenance(torch="2.13.0")))
    for name, table in zip(("runs", "metrics"), results.collect([start, then]), strict=True):
        table.to_parquet(tmp_path / f"{name}.parquet")
    from_start = {"model": spec.ModelSpec(name="tiny", run=start.name)}
    read = tables.run_spec

    def run_spec(row: pd.Series) -> spec.RunSpec:
        run = read(row)
        return run.model_copy(update=from_start) if row.method == "gwt" else run

    done: list[str] = []
    monkeypatch.setattr(tables, "run_spec", run_spec)
    monkeypatch.setattr(
        rerun, "train", lambda run, root: [done.append(f"train {run.method.name}"), then][1]
    )
    monkeypatch.setattr(
        "experiments.export.export", lambda folder, work, data: done.append(f"export {work.name}")
    )
    assert rerun.rerun(tmp_path, then.name, tmp_path / "new")[0] == []
    assert done == ["train adamw", f"export {start.name}", "train gwt"]


def conditions(machine: dict, versions: dict) -> list[str]:
    """Those under which the same bits are promised; Python's patch level is none of them."""
    names = ("torch", "numpy", "transformers", "accelerate")
    return [machine["processor"], machine["cpu_capability"], *(versions[name] for name in names)]


def provenance(torch: str) -> dict:
    known = dict.fromkeys(results.PROVENANCE, "p") | {"dirty": False}
    return known | {"versions": {"torch": torch}, "machine": {"cores": 2}}


def rows(folder: Path) -> tuple[list[pd.Series], pd.DataFrame]:
    runs, metrics = results.collect([folder])
    return [row for _, row in runs.iterrows()], metrics
