"""Other conditions beside the main study: the better of two rates, signs and ranks, by hand."""

import numpy as np
import pandas as pd
import pytest
from figlib import elsewhere, stats

from . import fixture_tables


def pretrained() -> pd.DataFrame:
    runs, _ = fixture_tables.tables(3)
    return stats.with_labels(runs[runs.task == "pretrain"])


def test_the_better_of_two_rates_is_chosen_for_each_seed() -> None:
    runs = pretrained()
    lower = runs.assign(lr=runs.lr / 2, run_id="l-" + runs.run_id)
    lower["final_validation_loss"] += np.where(runs.method == "gwt", -0.5, 0.5)
    lower.loc[lower.method == "coap", "final_validation_loss"] = np.nan  # diverged
    chosen = elsewhere.better_rate(pd.concat([runs, lower]), "both")
    assert len(chosen) == len(runs) and set(chosen.study) == {"both"}
    assert set(chosen.method[chosen.run_id.str.startswith("l-")]) == {"gwt"}


def test_agreement_counts_pairs_and_signs() -> None:
    """Seven methods whose losses differ by constants: 21 pairs, all decided."""
    main = pretrained()
    losses = main.final_validation_loss
    one_seed = main[main.seeds_weights == 0]
    upside_down = main.assign(final_validation_loss=10 - losses)
    # AdamW and GWT, first and third of the order, change places: pairs AdamW-AdamA, AdamW-GWT
    # and AdamA-GWT turn round
    swapped = one_seed.assign(method=one_seed.method)
    by = swapped.set_index("method").final_validation_loss
    swapped["final_validation_loss"] = swapped.method.map(
        by.to_dict() | {"adamw": by["gwt"], "gwt": by["adamw"]}
    )
    others = {"same": one_seed, "turned": upside_down, "swapped": swapped}
    found = elsewhere.agreement(main, others).set_index("condition")
    assert list(found.lines) == [7, 7, 7] and list(found.decided) == [21, 21, 21]
    assert list(found.kept) == [21, 0, 18]
    # ranks 1, 2, 3 become 3, 2, 1: 1 - 6 (4 + 0 + 4) / (7 (49 - 1))
    assert list(found.spearman) == pytest.approx([1, -1, 1 - 48 / 336])


def test_each_line_stands_at_both_differences() -> None:
    main = pretrained()
    there = main[main.method.isin(["adamw", "gwt", "lomo"])]
    there = there.assign(final_validation_loss=2 * there.final_validation_loss)
    table = elsewhere.beside(main, {"doubled": there}).set_index("method")
    assert set(table.index) == {"gwt", "lomo"}
    assert list(table.there) == pytest.approx(list(2 * table.difference))
    assert list(table.there_seeds) == [3, 3]
