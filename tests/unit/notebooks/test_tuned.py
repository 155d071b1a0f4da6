"""Tables of fine-tuning and instruction tuning, against hand computations on made-up runs."""

import json
from pathlib import Path

import pandas as pd
import pytest
from figlib import redraw, stats, tuned

from . import fixture_tables


def instructed(seeds: int) -> pd.DataFrame:
    runs, _ = fixture_tables.tables(seeds)
    return stats.with_labels(runs[runs.task == "instruct"])


def test_differences_to_adamw_stand_beside_the_scores() -> None:
    """LOMO's losses are 0.7 above AdamW's in every seed; a study without AdamW has none."""
    runs = instructed(3)
    alone = runs[runs.method == "lomo"].assign(study="alone")
    runs = pd.concat([runs, alone], ignore_index=True)
    table = tuned.with_differences(tuned.scores(runs), runs).set_index(["study", "method"])
    lomo = table.loc[("talk", "lomo")]
    assert (lomo.difference, lomo.difference_low) == pytest.approx((0.7, 0.7), abs=1e-9)
    assert lomo.reading == "worse"
    assert table.loc[("alone", "lomo")].isna()[["difference", "difference_high", "reading"]].all()
    assert lomo.low < lomo.score < lomo.high  # of the perplexity itself: seeds differ
    without = tuned.scores(alone)
    assert tuned.with_differences(without, alone) is without


def test_answers_are_those_of_the_first_seed() -> None:
    said = [json.dumps({"instruction": "Add.", "answer": str(n)}) + "\n" for n in range(3)]
    runs = instructed(3).sort_values("seeds_weights", ascending=False)
    runs["generations"] = [said[seed] for seed in runs.seeds_weights]
    runs.loc[runs.method == "lomo", "generations"] = None
    answers = tuned.answers(runs).set_index("method").answer.to_dict()
    assert answers == {"adamw": "0", "adalomo": "0", "lomo": "(not in these tables)"}


def test_a_run_that_only_others_start_from_asks_for_no_notebook(tmp_path: Path) -> None:
    runs, _ = fixture_tables.tables()
    start = runs[(runs.task == "pretrain") & (runs.method == "adamw")]
    tuned_runs = runs[runs.task == "instruct"]
    begins = {"pretrain": None, "instruct": start.run_id.item()}

    def notebooks(table: pd.DataFrame) -> set[str]:
        spec = [json.dumps({"model": {"run": begins.get(task)}}) for task in table.task]
        table.assign(spec=spec).to_parquet(tmp_path / "runs.parquet")
        return set(redraw.notebooks_of("made-up", tmp_path))

    assert notebooks(pd.concat([start, tuned_runs])) == {"instruction_tuning"}
    assert {"overview", "convergence"} <= notebooks(runs)  # others are beside it


def test_scores_are_paired_with_adamw_of_the_same_data_updates_and_seed() -> None:
    """Also across studies; what has no such run beside it is left out."""
    runs, _ = fixture_tables.tables(3)
    runs = tuned.with_scores(stats.with_labels(runs[runs.task == "finetune"]))
    alone = runs.study.eq("own") & runs.method.eq("adamw")
    elsewhere = runs.study.eq("mrpc") & runs.method.eq("gwt")
    runs.loc[elsewhere, "study"] = "mrpc_8"
    table = tuned.score_differences(runs[~alone]).set_index(["study", "method"])
    assert set(table.index) == {("mrpc_8", "gwt"), ("mrpc", "adalomo")}
    gwt = table.loc[("mrpc_8", "gwt")]
    found = (gwt.difference, gwt.difference_low, gwt.difference_high)
    assert found == pytest.approx([-0.02] * 3, abs=1e-6)  # what a seed does to all drops out
