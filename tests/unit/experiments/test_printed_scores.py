"""Printed results of fine-tuning: every value has one run a seed of suite `paper`, or a reason."""

import pytest

from experiments import printed_scores, spec, suites
from experiments.errors import UserError
from experiments.printed_scores import PrintedFile
from memopt import METHODS

ALL = {name: printed_scores.read(name) for name in printed_scores.FILES}


@pytest.fixture(scope="module")
def runs():
    return [run for run in suites.expand("paper") if run.task != "pretrain"]


@pytest.mark.parametrize("name", ALL)
def test_every_printed_value_has_its_runs_or_a_reason(name: str, runs) -> None:
    for cell in printed_scores.cells(ALL[name]):
        found = printed_scores.runs_of(cell, runs)
        what = f"{cell.table}: {cell.row.method} {cell.row.setting} {cell.model} {cell.task}"
        if cell.reason:
            assert not found, f"{what}: it has runs: drop the reason"
            continue
        assert found, what
        assert len({run.seeds.label for run in found}) == len(found), what
        assert cell.row.method in METHODS
        rank = found[0].method.args.get("rank")
        assert cell.row.setting in ("", "full", "not stated", f"rank {rank}"), what


def test_a_tasks_score_is_what_is_printed(runs) -> None:
    """The column beside GaLore's table is the metric by which the task's runs rank."""
    for task, column in ALL["glue"].tables["galore"].columns.items():
        scores = {run.score.metric for run in runs if run.study == f"glue_{task}"}
        assert scores == {column.removeprefix("final_")}


def test_averages_are_those_of_the_rows() -> None:
    """To one unit of the last printed digit; AdaLomo's 13B rows were cut, not rounded."""
    for name, places in (("glue", 2), ("instruct", 1)):
        for table in ALL[name].tables.values():
            for row in table.rows:
                if row.average is not None:
                    mean = sum(row.values.values()) / len(row.values)
                    assert mean == pytest.approx(row.average, abs=10**-places), row.method


# Read in the sources, not in the file.
@pytest.mark.parametrize(
    ("file", "table", "method", "setting", "model", "task", "value"),
    [
        ("glue", "galore", "galore", "rank 4", "roberta_base", "mrpc", 92.25),
        ("glue", "galore", "lora", "rank 8", "roberta_base", "cola", 61.83),
        ("glue", "galore_user", "galore", "rank 4", "roberta_base", "mrpc", 91.10),
        ("glue", "prac", "rso", "rank 4", "roberta_base", "sst2", 94.84),
        ("instruct", "adalomo", "adalomo", "", "llama1_7b", "gsm8k", 14.4),
        ("instruct", "lomo", "LOMO", "", "llama1_65b", "wsc", 92.3),
    ],
)
def test_values_are_those_of_the_sources(file, table, method, setting, model, task, value) -> None:
    found = [
        cell.value
        for cell in printed_scores.cells(ALL[file])
        if (cell.table, cell.row.method, cell.row.setting) == (table, method, setting)
        and (cell.model, cell.task) == (model, task)
    ]
    assert found == [value]


def test_a_value_without_column_or_reason_is_refused() -> None:
    row = {"method": "adamw", "values": {"mrpc": 90.0}}
    table = {"source": "s", "where": "w", "model": "bert", "columns": {}, "rows": [row]}
    with pytest.raises(UserError, match="row adamw, mrpc: give 'columns', 'reasons'"):
        spec.parse(PrintedFile, {"variant": "glue", "tables": {"x": table}}, "file")
