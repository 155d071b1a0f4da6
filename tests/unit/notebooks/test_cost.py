"""Time beside quality, and ratios to AdamW beside printed ones: against hand computations."""

import json
from pathlib import Path

import pandas as pd
import pytest
from figlib import compare, cost, stats
from figlib.errors import FigureError

from experiments import perplexity

from . import fixture_tables


def pretrained() -> pd.DataFrame:
    runs, _ = fixture_tables.tables(2)
    return stats.with_labels(runs[runs.task == "pretrain"])


def measured(runs: pd.DataFrame, file: Path) -> Path:
    """As ``benchmarks/update_time.py`` writes: GWT takes a quarter more than AdamW."""
    first = runs[(runs.seeds_weights == 0) & runs.method.isin(["adamw", "gwt"])]
    rows = [
        {"run_id": run.run_id, "study": run.study, "model": run.model, "method": run.method}
        | ({"ratio": 1.25, "min": 1.2, "max": 1.5} if run.method == "gwt" else
           {"ratio": 1.0, "min": 1.0, "max": 1.0})
        for run in first.itertuples()
    ]  # fmt: skip
    file.write_text(json.dumps({"rounds": 10, "blocks": 5, "rows": rows}))
    return file


def test_each_line_has_its_time_and_its_bytes(tmp_path: Path) -> None:
    runs = pretrained()
    timed, facts = cost.times(measured(runs, tmp_path / "t.json"), runs)
    assert facts == {"rounds": 10, "blocks": 5}
    table = cost.table(runs, timed).set_index("method")
    gwt = table.loc["gwt"]
    assert (gwt.extra_time, gwt.time_low, gwt.time_high) == (25.0, 1.2, 1.5)
    assert gwt.weights_states == (1_840_000 + 1_650_000) / 460_000
    assert pd.isna(table.loc["coap"].extra_time)  # not measured: no number


def test_a_measurement_of_other_runs_is_refused(tmp_path: Path) -> None:
    runs = pretrained()
    file = measured(runs, tmp_path / "t.json")
    with pytest.raises(FigureError, match=r"t\.json: main-nano-gwt-s0 is no run of these tables"):
        cost.times(file, runs[runs.method != "gwt"])


def test_ratios_of_printed_tables_are_to_their_own_adamw() -> None:
    """GaLore's sheet: 34.88 over 34.06; SCALE tuned its AdamW anew: Muon 28.86 over 30.05."""
    ours = compare.against(pretrained())
    ours = pd.concat([ours, ours[ours.method == "gwt"].assign(method="muon")])
    coap = ours[ours.method == "coap"]  # 0.09 above AdamW with every seed
    ours = pd.concat([ours, coap.assign(method="gwt", label="Adam, two rates")])
    table = cost.printed_ratios(ours, "Adam, two rates", perplexity.read())
    table = table.set_index(["method", "source"])
    assert table.printed_llama_60m["galore", "GaLore"] == pytest.approx(34.88 / 34.06)
    assert table.printed_llama_60m["galore", "SCALE"] == pytest.approx(34.58 / 30.05)
    assert table.printed_llama_60m["muon", "SCALE"] == pytest.approx(28.86 / 30.05)
    assert table.printed_llama_1b["coap", "COAP"] == 1.0
    assert table.loc[("gwt", "GWT")].base == "GaLore"  # prints no AdamW that is at hand
    # the fixture's GWT ends 0.06 nats above AdamW with every seed
    assert table.here["gwt", "GWT"] == pytest.approx(2.718281828**0.06, rel=3e-4)
    assert table.over_control["gwt", "GWT"] == pytest.approx(2.718281828 ** (0.06 - 0.09), rel=3e-4)
    assert "fira" not in table.index.get_level_values("method")  # was not run here


def test_two_lines_of_a_method_are_refused() -> None:
    ours = compare.against(pretrained())
    twice = pd.concat([ours, ours[ours.method == "gwt"].assign(label="Adam, two rates")])
    with pytest.raises(FigureError, match="a method has two lines"):
        cost.printed_ratios(twice, "GWT (level 1)", perplexity.read())
