"""What the figures of images compute, on made-up runs whose answers are known."""

import numpy as np
import pandas as pd
import pytest
from figlib import vision

from . import fixture_tables, fixture_vision


@pytest.fixture(scope="module")
def made() -> tuple[pd.DataFrame, pd.DataFrame]:
    runs, metrics = fixture_vision.tables(fixture_tables.run_row)
    return pd.DataFrame(runs), pd.DataFrame(metrics)


def test_methods_are_read_by_the_full_rank_one_with_their_rule(
    made: tuple[pd.DataFrame, pd.DataFrame],
) -> None:
    table = vision.conv_table(vision.named(made[0])).set_index(["model", "label"])
    conv = table.loc["digits_conv"]
    assert dict(conv.reference.dropna()) == {
        "Adafactor": "AdamW",
        "COAP": "AdamW",
        "COAP, 8-bit": "COAP",
        "COAP, Adafactor": "Adafactor",
        "GaLore": "AdamW",
    }
    # both seeds are 3 % worse than AdamW's of the same seed, whose losses differ by 10 %
    assert conv.relative["COAP"] == pytest.approx(0.03, rel=1e-9)
    assert conv.relative["COAP, Adafactor"] == pytest.approx(0.1, rel=1e-9)
    assert conv.reading["COAP"] == "equal"
    assert conv.reading["GaLore"] == "worse"
    assert conv.bytes_per_weight["COAP, 8-bit"] == 2
    lost = table.loc["digits_unet", "GaLore"]
    assert lost.reading == "diverged" and lost.diverged == 2


def test_norms_are_of_whole_epochs(made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    runs, metrics = made
    steps = runs[runs.study.str.match("(full|mini)_")]
    norms = vision.norms(steps, metrics).set_index(["study", "lr", "epoch"]).norm
    assert norms["mini_exact", 1.0, 1] == pytest.approx((1 + 1 + 0.2) / 3)  # three updates
    assert norms["mini_exact", 1.0, fixture_vision.EPOCHS] == pytest.approx(0.2)
    assert list(norms["full_exact", 1.0].index) == [1, 2]  # given up
    table = vision.schedule_table(steps, metrics).set_index(["batch", "schedule"])
    assert table.norm["full", "exact constant × 0.5"] == pytest.approx(0.5)
    assert table.rate["full", "exact constant × 0.5"] == pytest.approx(0.5 * fixture_vision.RATE)
    assert table.rate["full", "cosine"] == 0.01
    assert np.isnan(table.norm["full", "exact constant, five layers"])
    assert table.diverged["full", "exact constant"] == 2


def test_two_tasks(made: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    runs, _ = made
    table = vision.two_tasks(runs[runs.study.str.startswith("two_")])
    assert list(table.weight) == [1, 1, 5, 5, 5, 5]
    gcond = table[(table.how == "GCond") & (table.weight == 5)].iloc[0]
    assert gcond.image_error == pytest.approx(0.04) and gcond.conflict_share == 0.3
