"""What the figures of gradients compute, on drawn matrices whose shares are known."""

from pathlib import Path

import pandas as pd
import pytest
from figlib import gradients
from figlib.errors import FigureError

from . import fixture_gradients, fixture_tables


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    folder = tmp_path_factory.mktemp("tables")
    run = fixture_tables.run_row("main-nano-adamw-s0", "pretrain", "nano", "adamw", 0)
    fixture_gradients.table(run).to_parquet(folder / "gradients.parquet")
    return gradients.read(folder)


def test_medians_over_matrices_and_updates(measured: pd.DataFrame) -> None:
    rows = gradients.one(measured, "adamw")
    bands = gradients.bands(rows, []).set_index(["kind", "order", "level"])
    query = bands.loc["q_proj", "own", 1]  # three updates of equal columns, three of drawn ones
    assert query.cases == 6 and query.highest == pytest.approx(1, abs=1e-6)
    assert query.times == pytest.approx(2 * query.share)
    down = bands.loc["down_proj", "permuted", 2]
    assert down.cases == 3 and down.times == pytest.approx(1, abs=0.25)
    ranks = gradients.directions(rows, []).set_index(["kind", "rank"])
    assert ranks.share["q_proj", 16] == pytest.approx(1, abs=1e-6)
    assert ranks.highest["q_proj", 1] == pytest.approx(1, abs=1e-6)  # rank 1
    # 16 independent rows of 40 numbers: the law is that of large matrices
    assert ranks.share["down_proj", 4] == pytest.approx(ranks.independent["down_proj", 4], abs=0.05)
    assert ranks.fraction["embed_tokens", 4] == 0.25


def test_equal_numbers_and_what_decides(measured: pd.DataFrame) -> None:
    each = gradients.equal_numbers(gradients.one(measured, "adamw"))
    assert len(each) == 4 * 3 and not each.isna().any(axis=None)
    equal = each[each.name == fixture_gradients.WEIGHTS[0][0]]  # all columns the same
    for name in ("band", "permuted", "expected", "singular", "largest"):
        assert equal[name].to_numpy() == pytest.approx(1, abs=1e-5)
    assert equal.stable_rank.to_numpy() == pytest.approx(1, abs=1e-5)
    assert each.singular.ge(each.random).all() and each.largest.ge(each.band - 1e-6).all()
    table = gradients.energy_table(gradients.one(measured, "adamw")).set_index("what")
    assert table.cases["treated matrices"] == 9 and table.matrices["query"] == 2
    assert table.largest["independent numbers"] == pytest.approx(0.7237, abs=1e-4)
    decided = gradients.premise(measured)
    assert list(decided.tensor) == ["gradient", "momentum"] and set(decided.cases) == {9}


def test_a_missing_table_names_its_command(tmp_path: Path) -> None:
    with pytest.raises(FigureError, match=r"gradients.parquet: no such table; .*experiments\."):
        gradients.read(tmp_path)
