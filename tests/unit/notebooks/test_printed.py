"""Predicted memory beside printed values."""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from figlib import bars, printed, style
from figlib.errors import FigureError

from . import fixture_tables


@pytest.fixture(scope="module")
def memory() -> pd.DataFrame:
    return fixture_tables.memory()


def test_one_row_a_model_and_method(memory: pd.DataFrame) -> None:
    sizes = printed.full_size(memory)
    assert list(sizes.name.unique()) == ["LLaMA 60M", "LLaMA 7B"]
    assert list(sizes.method[:7]) == list(fixture_tables.METHODS)
    adamw = sizes[(sizes.model == "llama_7b") & (sizes.method == "adamw")].iloc[0]
    assert (adamw.weights, adamw.states) == (10 * 2**30, 20 * 2**30)


def test_wider_states_are_named(memory: pd.DataFrame) -> None:
    rows = memory.assign(storage=memory.storage.where(memory.method != "adama", "float32"))
    assert "AdamA, float32" in set(printed.full_size(rows).label)


def test_marks_stand_where_the_setting_is_the_same(memory: pd.DataFrame) -> None:
    marks = printed.marks(memory, printed.full_size(memory)).set_index(["model", "source"])
    assert marks.bytes["llama_60m", "GaLore"] == pytest.approx(330 * 2**20)
    assert marks.bytes["llama_7b", "LOMO"] == pytest.approx(10 * 2**30)  # weights and states apart
    assert len(marks) == 2
    other = memory.copy()
    other.loc[(other.table == "papers") & (other.part == "states"), "bytes"] += 1
    assert printed.marks(other, printed.full_size(other)).empty


def test_an_inferred_value_gives_way_to_a_printed_one(memory: pd.DataFrame) -> None:
    guess = memory[memory.source == "GaLore"].assign(source="GWT", standing="inferred")
    both = pd.concat([memory, guess], ignore_index=True)
    assert set(printed.marks(both, printed.full_size(both)).source) == {"GaLore", "LOMO"}
    alone = both[~(both.source == "GaLore").fillna(False)]
    assert "GWT (inferred)" in set(printed.marks(alone, printed.full_size(alone)).source)


def test_the_comparison_shows_difference_and_reason(memory: pd.DataFrame) -> None:
    rows = printed.comparison(memory)
    assert rows.difference[:3].tolist() == [-30, 0, 0]
    assert rows.label[3] == "coap ratio 2" and pd.isna(rows.ours[3])
    assert rows.reason[3] == "no such shape"
    assert rows.reason[0] == "one 10 % too high | made up"
    assert printed.agreement(rows).startswith("2 of 3 agree")


def test_the_figure_has_a_panel_a_model(memory: pd.DataFrame) -> None:
    style.use()
    sizes = printed.full_size(memory)
    figure = bars.models(sizes, printed.marks(memory, sizes))
    assert [a.get_title(loc="left") for a in figure.axes] == ["LLaMA 60M", "LLaMA 7B"]
    ends = [t.get_text() for t in figure.axes[0].texts]
    assert ends[0].startswith("0.293 + ")  # 300 MiB in GiB, and the gradients


def test_missing_table_and_missing_rows_are_named(memory: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(FigureError, match=r"memory\.parquet: no such table"):
        printed.read(tmp_path)
    with pytest.raises(FigureError, match="papers' models.*no rows"):
        printed.full_size(memory[memory.table != "papers"])


def test_every_source_of_printed_memory_has_a_marker_of_its_own() -> None:
    repo = Path(__file__).resolve().parents[3]
    printed = yaml.safe_load((repo / "experiments/printed/memory.yaml").read_text())
    sources = {table["source"] for table in printed["tables"].values()}
    assert sources <= set(bars.PRINTED_MARKERS)
    assert len(set(bars.PRINTED_MARKERS.values())) == len(bars.PRINTED_MARKERS)
