"""Printed perplexities: every value has one run of suite `paper`, or a reason."""

import math

import pandas as pd
import pytest

from experiments import perplexity, spec, suites
from experiments.errors import UserError
from experiments.perplexity import PrintedFile
from memopt import METHODS

PRINTED = perplexity.read()


@pytest.fixture(scope="module")
def runs():
    return suites.expand("paper")


def test_every_printed_value_has_one_run_or_a_reason(runs) -> None:
    for cell in perplexity.cells(PRINTED):
        found = perplexity.runs_of(cell, runs)
        what = f"{cell.table}: {cell.row.method} {cell.row.variant} {cell.model}"
        if cell.row.reason:
            assert cell.row.method not in METHODS, f"{what}: the catalog has it: give it a run"
            continue
        assert len(found) == 1, what
        train = found[0].train
        assert train.batch_size * train.sequence_length == 131_072
        if cell.row.at:
            assert cell.row.at <= train.steps and cell.row.at % train.eval_every == 0, what


def test_no_run_of_the_main_tables_lacks_a_use(runs) -> None:
    """The other way round: what is trained beyond AdamA's parity stands beside something."""
    used = {
        run.run_id for cell in perplexity.cells(PRINTED) for run in perplexity.runs_of(cell, runs)
    }
    idle = {
        f"{run.study}/{run.method.name}"
        for run in runs
        if run.run_id not in used and run.task == "pretrain"
    }
    # GWT and COAP are printed for other sizes or not at all; they are what the suite is for
    assert {name for name in idle if not name.startswith("adama_n")} == {
        f"c4_{size}/coap" for size in ("60m", "130m", "350m")
    }


# Values spot-checked against the sources, not against the file's own structure.
@pytest.mark.parametrize(
    ("table", "method", "model", "at", "value"),
    [
        ("galore", "adamw", "llama_60m", None, 34.06),
        ("galore", "relora", "llama_1b", None, 18.33),
        ("galore_7b", "adam8bit", "llama_7b", 80_000, 15.47),
        ("coap_7b", "adam8bit", "llama_7b", 80_000, 15.39),
        ("apollo_1024", "apollo", "llama_350m", None, 15.64),
        ("scale", "muon", "llama_130m", None, 22.20),
    ],
)
def test_values_are_those_of_the_sources(table, method, model, at, value) -> None:
    found = [
        cell.value
        for cell in perplexity.cells(PRINTED)
        if (cell.table, cell.row.method, cell.model, cell.row.at) == (table, method, model, at)
        and cell.row.variant in ("c4", "8bit", "long")
    ]
    assert found == [value]


def test_ours_stands_beside_only_where_it_was_run() -> None:
    runs = pd.DataFrame(
        {"run_id": ["a", "b"], "study": "c4_60m", "model": "llama_60m", "method": "adamw"}
    )
    rows = [("a", 1000, 3.6), ("a", 2000, 3.4), ("b", 2000, 3.6)]
    metrics = pd.DataFrame(rows, columns=["run_id", "step", "loss"]).assign(split="validation")
    table = perplexity.beside(PRINTED, runs, metrics)
    ran = table[table.seeds > 0]
    assert set(zip(ran.table, ran.method, strict=True)) == {("galore", "adamw"), ("scale", "adamw")}
    row = ran[ran.table == "galore"].iloc[0]
    assert row.ours == pytest.approx(math.exp(3.5)) and row.seeds == 2
    assert row.difference_percent == pytest.approx(100 * (math.exp(3.5) / 34.06 - 1))
    assert table[table.seeds == 0].ours.isna().all()


def test_a_value_at_an_earlier_step() -> None:
    runs = pd.DataFrame(
        {"run_id": ["a"], "study": "8bit_7b", "model": "llama_7b", "method": "galore"}
    )
    rows = [("a", 40_000, 2.9), ("a", 80_000, 2.7)]
    metrics = pd.DataFrame(rows, columns=["run_id", "step", "loss"]).assign(split="validation")
    table = perplexity.beside(PRINTED, runs, metrics).query("table == 'galore_7b' and seeds > 0")
    assert dict(zip(table["at"], table.loss, strict=True)) == {40_000: 2.9, 80_000: 2.7}


def test_a_value_twice_is_refused() -> None:
    row = {"method": "adamw", "values": {"llama_60m": 30.0}}
    content = {"tables": {"x": {"source": "s", "where": "w", "rows": [row, row]}}}
    with pytest.raises(UserError, match="table x: two values for .*adamw.*llama_60m"):
        spec.parse(PrintedFile, content, "file")
