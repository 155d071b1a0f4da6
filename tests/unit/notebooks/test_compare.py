"""Paired differences, the front of quality and bytes, and ablations: against hand computations."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from figlib import ablations, compare, stats
from figlib.errors import FigureError

from . import fixture_tables


def pretrained(seeds: int) -> pd.DataFrame:
    runs, _ = fixture_tables.tables(seeds)
    return stats.with_labels(runs[runs.task == "pretrain"])


def test_differences_are_paired_by_seed() -> None:
    """What a seed does to all methods alike drops out: GWT's losses are 0.06 above each AdamW's."""
    table = compare.against(pretrained(3)).set_index("method")
    gwt = table.loc["gwt"]
    assert (gwt.difference, gwt.low, gwt.high) == pytest.approx((0.06, 0.06, 0.06), abs=2e-4)
    assert gwt.reading == "worse"
    assert table.loc["adamw"].difference == 0
    assert gwt.bytes_per_weight == pytest.approx(1_650_000 / 460_000)


def test_interval_of_unequal_differences() -> None:
    """Differences 1, 2, 3 and t(0.975, 2) = 4.302653: half width 4.302653 / sqrt(3)."""
    runs = pretrained(3)
    base = runs.seeds_weights.map({0: 5.0, 1: 6.0, 2: 9.0})
    runs["final_validation_loss"] = base + (runs.method == "gwt") * (1.0 + runs.seeds_weights)
    gwt = compare.against(runs).set_index("method").loc["gwt"]
    half = 4.302653 / math.sqrt(3)
    assert (gwt.difference, gwt.low, gwt.high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-6)
    assert gwt.reading == "cannot say"


@pytest.mark.parametrize(
    ("interval", "reading"),
    [
        ((-0.2, -0.3, -0.1), "better"),
        ((0.2, 0.1, 0.3), "worse"),
        ((0.002, -0.005, 0.009), "equal"),
        ((0.002, -0.02, 0.024), "cannot say"),
        ((0.1, math.nan, math.nan), "one seed"),
        ((math.nan, math.nan, math.nan), "diverged"),
    ],
)
def test_reading_follows_the_plan(interval: tuple[float, float, float], reading: str) -> None:
    assert compare.reading(*interval) == reading


def test_a_diverged_seed_leaves_no_number() -> None:
    runs = pretrained(3)
    first = runs.index[runs.method == "coap"][0]
    runs.loc[first, ["final_validation_loss", "diverged"]] = [np.nan, True]
    coap = compare.against(runs).set_index("method").loc["coap"]
    assert np.isnan(coap.loss) and coap.reading == "diverged" and coap.diverged == 1


def test_a_seed_without_the_reference_is_named() -> None:
    runs = pretrained(2)
    lost = runs[~((runs.method == "adamw") & (runs.seeds_weights == 1))]
    with pytest.raises(FigureError, match=r"main-nano-\w+-s1 has no run of adamw"):
        compare.against(lost)


def test_another_text_is_compared_by_the_seeds_that_the_reference_has_there() -> None:
    runs = pretrained(3)
    asked = runs[runs.method.isin(["adamw", "gwt"]) & (runs.seeds_weights != 2)]
    asked = pd.concat([asked, runs[(runs.method == "coap") & (runs.seeds_weights == 2)]])
    table = asked[["run_id"]].assign(loss=6.0 + 0.25 * (asked.method == "gwt"))
    found = compare.elsewhere(runs, table).set_index("method")
    assert set(found.index) == {"adamw", "gwt"}  # COAP's seed has no AdamW there
    assert found.loc["gwt", ["elsewhere_loss", "elsewhere_difference"]].tolist() == [6.25, 0.25]
    assert found.loc["gwt", "elsewhere_seeds"] == 2
    assert compare.elsewhere(runs, table[:0]).empty


def test_the_control_stands_beside_the_methods_of_its_model_and_length() -> None:
    runs, _ = fixture_tables.tables(2)
    gwt = runs[runs.method == "gwt"]
    args = json.dumps({"level": 0})
    control = gwt.assign(study=compare.CONTROL, run_id="c-" + gwt.run_id, method_args=args)
    other = control.assign(run_id="d-" + gwt.run_id, model="another")  # beside nothing
    varied = control.assign(run_id="e-" + gwt.run_id, study="ablation_gwt")
    found = compare.comparisons(pd.concat([runs, control, other, varied], ignore_index=True))
    assert set(found.run_id) == {*runs.run_id, *control.run_id}
    assert list(found.study[found.run_id.isin(control.run_id)]) == list(gwt.study)
    assert compare.comparisons(varied).empty
    labelled = stats.with_labels(found)
    assert set(labelled.label[labelled.method == "gwt"]) == {"GWT", "Adam, two rates"}


def test_front_holds_what_nothing_beats() -> None:
    points = pd.DataFrame(
        {"bytes_per_weight": [0, 2, 2, 4, 8], "perplexity": [90.0, 50, 60, 55, 40]}
    )
    assert list(compare.front_of(points).perplexity) == [90, 50, 40]


def test_ablations_stand_beside_the_same_seed_of_the_own_setting() -> None:
    runs, _ = fixture_tables.tables(seeds=3)
    runs = runs[runs.task == "pretrain"]
    both = pd.concat([runs, fixture_tables.ablation()], ignore_index=True)
    table = ablations.table(both)
    assert set(table.varied) == {"level"}
    assert list(table.setting) == ["2 (own)", "0", "1", "3"]
    losses = runs[runs.method == "gwt"].set_index("seeds_weights").final_validation_loss
    wanted = fixture_tables.ablation().final_validation_loss - losses[0]
    assert list(table.difference) == pytest.approx([0, *wanted])
    assert table.spread.iloc[0] == pytest.approx(2 * losses.std(ddof=1))
    with pytest.raises(FigureError, match="ablation_gwt_level-nano-gwt-0 has no run of the own"):
        ablations.table(pd.concat([runs[runs.method != "gwt"], fixture_tables.ablation()]))
