"""Intervals, labels and curves against closed forms."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from figlib import rows, stats
from figlib.errors import FigureError

from . import fixture_tables


def test_student_interval_of_three_values() -> None:
    """t(0.975, 2) = 4.302653 (tables); the values 1, 2, 3 have s = 1."""
    mean, low, high = stats.interval([1.0, 2.0, 3.0])
    half = 4.302653 / math.sqrt(3)
    assert (mean, low, high) == pytest.approx((2, 2 - half, 2 + half), abs=1e-6)


def test_one_seed_has_no_interval() -> None:
    mean, low, high = stats.interval([4.0])
    assert mean == 4 and math.isnan(low) and math.isnan(high)


def test_median_has_an_interval_from_six_values_on() -> None:
    """Tables of the sign test: 6 values span 96.9 %, the second of 9 to the eighth 96.1 %."""
    assert stats.median_interval([3, 1, 2, 6, 5, 4]) == (3.5, 1, 6)
    assert stats.median_interval(range(9)) == (4, 1, 7)
    five = stats.median_interval([5, 1, 9, 2, 3])
    assert five[0] == 3 and math.isnan(five[1])


def test_seeds_are_put_together_by_the_rule_of_their_task() -> None:
    runs, _ = fixture_tables.tables(seeds=3)
    runs = stats.with_labels(runs[runs.task == "finetune"])
    runs.loc[runs.seeds_weights == 2, "final_score"] = 0.0  # one seed far off
    means = rows.over_seeds(runs, "final_score", "as is").value
    medians = rows.over_seeds(runs.assign(aggregate="median"), "final_score", "as is").value
    first = runs[runs.label == runs.label.iloc[0]].final_score[:3]
    assert means[0] == pytest.approx(first.mean()) and medians[0] == sorted(first)[1]
    with pytest.raises(FigureError, match=r"rules \['mean', 'median'\]"):
        mixed = runs.assign(aggregate=["median"] + [None] * (len(runs) - 1))
        rows.over_seeds(mixed, "final_score", "as is")


def test_labels_name_only_what_differs() -> None:
    runs, _ = fixture_tables.tables(seeds=2)
    assert set(stats.with_labels(runs).label) == {
        "AdamW", "GWT", "COAP", "GaLore", "AdamA", "LOMO", "AdaLomo",
    }  # fmt: skip
    other = runs[(runs.method == "gwt") & (runs.task == "pretrain")].copy()
    other["method_args"] = json.dumps({"level": 3})
    both = stats.with_labels(pd.concat([runs, other], ignore_index=True))
    nano = both[(both.method == "gwt") & (both.task == "pretrain")]
    assert set(nano.label) == {"GWT (level 2)", "GWT (level 3)"}
    assert set(both[both.method == "coap"].label) == {"COAP"}


def test_curves_average_losses_not_perplexities() -> None:
    runs, metrics = fixture_tables.tables(seeds=3)
    labelled = stats.with_labels(runs[runs.task == "pretrain"])
    curves = stats.curves(labelled, metrics)
    assert list(curves.label.unique())[:2] == ["AdamW", "GWT"]
    last = curves[(curves.method == "gwt") & (curves.step == fixture_tables.STEPS)].iloc[0]
    gwt = labelled.run_id[labelled.method == "gwt"]
    wanted = metrics[metrics.run_id.isin(gwt) & (metrics.step == fixture_tables.STEPS)].loss
    assert last.seeds == 3
    assert last.perplexity == pytest.approx(math.exp(wanted.mean()), rel=1e-12)
    assert last.low < last.perplexity < last.high
    assert last.perplexity - last.low < last.high - last.perplexity  # exponentials are convex


def test_points_of_a_diverged_run_are_left_out() -> None:
    runs, metrics = fixture_tables.tables()
    labelled = stats.with_labels(runs[runs.task == "pretrain"])
    metrics.loc[(metrics.method == "coap") & (metrics.step > 100), "loss"] = np.nan
    curves = stats.curves(labelled, metrics)
    assert curves[curves.method == "coap"].step.max() == 100


def test_step_time_is_a_ratio_to_adamw_of_the_same_model() -> None:
    runs, _ = fixture_tables.tables()
    times = rows.step_time(stats.with_labels(runs[runs.task == "pretrain"]))
    assert times.set_index("method").time_ratio["adamw"] == 1
    assert times.set_index("method").time_ratio["lomo"] == pytest.approx(15_000 / 13_500)
    without = rows.step_time(stats.with_labels(runs[runs.method == "gwt"]))
    assert without.time_ratio.isna().all()


def test_empty_and_incomplete_tables_are_named() -> None:
    runs, metrics = fixture_tables.tables()
    with pytest.raises(FigureError, match="pretraining runs: no rows"):
        stats.require(runs[:0], "pretraining runs", ["run_id"])
    with pytest.raises(FigureError, match="pretraining runs: no column 'final_loss'"):
        stats.require(runs, "pretraining runs", ["final_loss"])
    labelled = stats.with_labels(runs[runs.task == "pretrain"])
    with pytest.raises(FigureError, match=r"metrics\.parquet.*no rows"):
        stats.curves(labelled, metrics[metrics.split == "train"])
