"""AdamA over micro-batches: rows, distances and the reading of the formula, on made-up tables."""

import numpy as np
import pandas as pd
import pytest
from figlib import micro_batches
from figlib.errors import FigureError

from . import fixture_adama, fixture_tables


@pytest.fixture
def tables() -> tuple[pd.DataFrame, pd.DataFrame]:
    runs, metrics = fixture_tables.tables(seeds=3)
    more = fixture_adama.tables(fixture_tables.run_row, metrics)
    both = zip((runs, metrics), more, strict=True)
    return tuple(pd.concat([old, new], ignore_index=True) for old, new in both)


def test_distances_are_to_adamw_of_the_same_seed(tables: tuple) -> None:
    runs = micro_batches.chosen(tables[0])
    assert list(runs.label) == [f"AdamA, N = {n}" for n in (1, 2, 4)] + [
        "AdamW, N = 1", "AdamW, N = 2",
    ]  # fmt: skip
    assert list(runs.reference) == [False, False, False, True, False]
    apart = micro_batches.distances(runs, tables[1])
    wanted = {"AdamA, N = 2": 0.004, "AdamA, N = 4": 0.02, "AdamW, N = 1": 0, "AdamW, N = 2": 1e-5}
    wanted["AdamA, N = 1"] = 0.0005 * (1 - np.exp(-300 / 45))  # by the fixture's curves
    last = apart[apart.step == 300].set_index("label").difference
    assert last.to_dict() == pytest.approx(wanted, abs=1e-12)


def test_readings(tables: tuple) -> None:
    runs = micro_batches.chosen(tables[0])
    apart = micro_batches.distances(runs, tables[1])
    measured = fixture_adama.measured(runs.iloc[-1].to_dict())
    table = micro_batches.numbers(runs, apart, measured).set_index("label")
    assert table.reading.to_dict() == {
        "AdamA, N = 1": "within 0.01 nats",
        "AdamA, N = 2": "the same bits as AdamW, N = 2",
        "AdamA, N = 4": "beyond 0.01 nats",
        "AdamW, N = 1": "reference",
        "AdamW, N = 2": "rounding alone",
    }
    assert table.difference["AdamA, N = 4"] == pytest.approx(0.02)
    # formula at 0.5 and four micro-batches
    assert table.step_ratio["AdamA, N = 4"] == pytest.approx((1.5 / 1.125) ** 0.5)


@pytest.mark.parametrize(("error", "near"), [(0.04, 1.0), (-0.06, 0.0)])
def test_agreement_with_the_formula(error: float, near: float) -> None:
    run = fixture_tables.run_row("measured", "pretrain", "nano", "adamw", 0)
    found = micro_batches.agreement(fixture_adama.measured(run, error))
    assert found == pytest.approx((near, abs(error)))


def test_runs_without_adamw_beside_are_named(tables: tuple) -> None:
    runs = tables[0]
    with pytest.raises(FigureError, match="expected one run of AdamW beside it"):
        micro_batches.chosen(runs[~((runs.study == "main") & (runs.method == "adamw"))])
    with pytest.raises(FigureError, match="ablation_adama_... studies: no rows"):
        micro_batches.chosen(runs[runs.study == "main"])
