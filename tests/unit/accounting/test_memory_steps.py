"""`python -m experiments.memory_steps`: whole steps, the papers' figures, the largest model."""

import re

import pandas as pd
import pytest

from experiments import memory_steps, spec, suites
from memopt import METHODS
from memopt.accounting import step


@pytest.fixture(scope="module")
def file() -> memory_steps.File:
    return spec.load(memory_steps.File, memory_steps.PRINTED)


def test_columns_are_the_documented_ones() -> None:
    documented = re.findall(r"``([a-z_]+)``", memory_steps.__doc__.split("steps.parquet`` has")[1])
    assert set(memory_steps.COLUMNS) <= set(documented)


def test_printed_figures_name_methods_of_the_catalog(file: memory_steps.File) -> None:
    tables = [getattr(file, study) for study in memory_steps.File.model_fields]
    assert {row.method for table in tables for row in table.rows} <= set(METHODS)


def test_every_suite_has_a_breadth() -> None:
    assert {suites.breadth(name) for name in suites.names("suites")} == {"least", "less", "all"}


def test_rows_of_a_paper(file: memory_steps.File) -> None:
    small = memory_steps.narrowed(file, "least")
    rows = pd.DataFrame(memory_steps.paper_rows("lomo_table1", small.lomo_table1))
    wide = rows.pivot_table(index=["method", "checkpointing"], columns="part", values="value")
    assert (wide["sum"] >= wide["weights"] + wide["gradients"] + wide["states"]).all()
    assert wide.loc[("lomo", True), "peak"] < wide.loc[("adamw", True), "peak"] / 2
    count = 58_016
    assert wide.loc[("adamw", False), "states"] == pytest.approx(12 * count, rel=0.01)  # master
    assert wide.loc[("sgd", False), "states"] == 4 * count  # the master copy alone
    assert "printed" not in rows or rows.printed.isna().all()


def test_what_differs_has_a_reason(file: memory_steps.File) -> None:
    beside = memory_steps._beside(2**30, "1.00", file.lomo_table1)
    assert (beside["agreement"], beside["reason"]) == ("printed digits", "")
    assert memory_steps._beside(2**31, "1.00", file.lomo_table1)["reason"]
    assert memory_steps._beside(2**31, None, file.lomo_table1) == {}
    other = memory_steps._beside(2**30, "1.00", file.coap_figure2)
    assert other["agreement"] == "other model" and "LLaVA" in other["reason"]


def test_micro_batches_are_whole_steps() -> None:
    rows = pd.DataFrame(memory_steps.micro_batch_rows("minilm_l6", ["float32"]))
    peaks = rows.pivot(index="micro_batches", columns="method", values="value")
    # the abstract: up to 23 %; without activations it would be a quarter
    assert 0.1 < (1 - peaks.adama / peaks.adamw).max() < 0.25
    live = step("minilm_l6", "adamw", batch=16, seq=memory_steps.LENGTH, micro_batches=4)
    assert peaks.adamw[4] == live.peak


def test_deepest_model_fits_and_a_deeper_one_does_not() -> None:
    limit, given = 10**9, ("minilm_l6", "adama", "float32")
    layers = memory_steps.deepest(*given, 1, limit)
    fits, over = (memory_steps.deep(*given, n).peak for n in (layers, layers + 1))
    assert layers > 6
    assert fits <= limit < over
    alone = memory_steps.deepest("minilm_l6", "adamw", "float32", 1, limit)
    assert alone < layers < memory_steps.deepest(*given, 8, limit)
