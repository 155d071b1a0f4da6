"""Where energy lies: closed forms, PyWavelets, and a measured training that stays the same."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import pywt
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments import concentration, gradients, probes, spec, suites
from experiments.errors import UserError

from .conftest import make_run, run_content
from .test_training import default_algorithms, execute  # noqa: F401

BANDS = [1, 2, 3]


def normal(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, dtype=torch.float64, generator=draw)


@pytest.mark.parametrize("level", BANDS)
def test_closed_forms_of_the_band(level: int) -> None:
    constant = torch.tensor([[1.0], [-3.0], [0.5]], dtype=torch.float64).expand(3, 16)
    assert concentration.band_share(constant, level) == pytest.approx(1, abs=1e-12)
    alternating = constant * torch.tensor([1.0, -1.0]).repeat(8)
    assert concentration.band_share(alternating, level) == pytest.approx(0, abs=1e-12)
    # 400,000 independent numbers: the share has a standard error below 0.0012
    assert concentration.band_share(normal(500, 800), level) == pytest.approx(2**-level, abs=0.006)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 5))
def test_band_is_that_of_pywavelets(rows: int, columns: int, level: int) -> None:
    matrix = normal(rows, columns, seed=rows)
    missing = -columns % 2**level
    padded = np.pad(matrix.numpy(), ((0, 0), (0, missing)))
    band = pywt.wavedec(padded, "haar", mode="periodization", level=level, axis=1)[0]
    share = (band**2).sum() / (padded**2).sum()
    assert concentration.band_share(matrix, level) == pytest.approx(share, rel=1e-9)


@pytest.mark.parametrize("columns", [1, 6])
def test_expected_share_is_the_mean_over_all_permutations(columns: int) -> None:
    from itertools import permutations

    matrix = normal(2, columns) + 0.7  # a mean, which no order removes
    every = [
        concentration.band_share(matrix[:, list(order)], 2)
        for order in permutations(range(columns))
    ]
    assert concentration.expected_band_share(matrix, 2) == pytest.approx(np.mean(every), rel=1e-9)


def test_singular_largest_and_random_shares() -> None:
    one = torch.outer(normal(1, 5)[0], normal(1, 9)[0])
    assert concentration.singular_shares(one)[0] == pytest.approx(1, abs=1e-12)
    assert concentration.stable_rank(one) == pytest.approx(1, abs=1e-12)
    diagonal = torch.diag(torch.tensor([3.0, 0.0, 4.0], dtype=torch.float64))
    assert concentration.singular_shares(diagonal).tolist() == pytest.approx([16 / 25, 1, 1])
    assert concentration.stable_rank(diagonal) == pytest.approx(25 / 16)
    assert concentration.largest_share(diagonal, 1) == pytest.approx(16 / 25)
    flat = torch.eye(64, dtype=torch.float64)  # any r directions hold r / 64 of it
    for shares in (concentration.singular_shares(flat), concentration.random_shares(flat.T)):
        assert shares.tolist() == pytest.approx([r / 64 for r in range(1, 65)])
    tall = concentration.random_shares(normal(3000, 8))
    assert tall.tolist() == pytest.approx([r / 8 for r in range(1, 9)], abs=0.02)


@pytest.mark.parametrize(("rows", "columns"), [(160, 160), (80, 400)])
def test_baselines_are_those_of_independent_numbers(rows: int, columns: int) -> None:
    matrix = normal(rows, columns)
    measured = concentration.singular_shares(matrix)
    for rank in (rows // 8, rows // 4, rows // 2, rows):
        baseline = concentration.independent_singular_share(rank, rows, columns)
        assert float(measured[rank - 1]) == pytest.approx(baseline, abs=0.01)
    largest = concentration.largest_share(matrix, matrix.numel() // 4)
    assert largest == pytest.approx(concentration.independent_largest_share(0.25), abs=0.01)
    # of normal numbers the largest quarter lies beyond 1.1503 standard deviations
    assert concentration.independent_largest_share(0.25) == pytest.approx(0.7237, abs=1e-4)


@pytest.mark.parametrize("matrix", [torch.zeros(4, 6), torch.full((4, 6), torch.inf)])
def test_nothing_to_share_out_is_not_a_number(matrix: torch.Tensor) -> None:
    rows = pd.DataFrame(gradients.measured(matrix, {}))
    assert len(rows) == 10 * 3 + 2 * 5 + 2 * 3 and rows.share.isna().all()
    assert rows.stable_rank.isna().all()


def test_one_row_and_equal_numbers_kept() -> None:
    rows = pd.DataFrame(gradients.measured(normal(1, 7), {"name": "w"}))
    assert rows.share.between(0, 1 + 1e-12).all()
    assert (rows[rows.choice == "singular"].share - 1).abs().max() < 1e-12
    band = rows[(rows.choice == "band") & (rows.axis == "last") & (rows.order == "own")]
    assert list(band.kept) == [4, 2, 1, 1, 1]
    for level in concentration.LEVELS[:4]:  # 64 x 176: the rank of a level keeps as many numbers
        assert concentration.matched_rank(64, 176, level) * 176 == 64 * 176 // 2**level


def test_measuring_changes_no_bit_of_the_training(prepared: Path, tmp_path: Path) -> None:
    run = make_run(run_content())
    summary, _ = execute(run, tmp_path / "plain", prepared)
    (tmp_path / "work").mkdir()
    table = gradients.measure(run, prepared, tmp_path / "work", [1, 12])
    assert set(table.weights_sha256) == {summary["weights_sha256"]}
    assert set(table.final_validation_loss) == {summary["final"]["validation_loss"]}
    assert set(table.step) == {1, 12} and set(table.run_id) == {run.run_id}
    assert set(table.config_hash) == {run.config_hash}
    seen = table.drop_duplicates(["tensor", "step", "name"])
    assert len(seen) == 2 * 2 * (2 * 7 + 2)
    assert set(seen.kind[~seen.treated]) == {"embed_tokens", "lm_head"}
    assert set(seen.layer.dropna()) == {0, 1}
    # Adam's first moment after its first update is a tenth of the gradient
    first = seen[seen.step == 1].set_index(["tensor", "name"])
    ratio = first.energy["momentum"] / first.energy["gradient"]
    assert ratio.to_numpy() == pytest.approx(0.01, rel=1e-4)
    assert first.loc["gradient"].stable_rank.to_numpy() == pytest.approx(
        first.loc["momentum"].stable_rank.to_numpy(), rel=1e-3
    )


def test_what_cannot_be_measured_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it has updates 1 to 12; asked for \[13\]"):
        gradients.check(make_run(run_content()), [1, 13])
    with pytest.raises(UserError, match="adalomo uses gradients during backward"):
        gradients.check(make_run(run_content(), name="adalomo", lr=1e-2), [1])
    wanted = {"runs": ["methods/llama_nano/adam/s0"], "steps": [1]}
    with pytest.raises(UserError, match="'methods/llama_nano/adam/s0' names 0 runs.*adamw/s0"):
        spec.parse(probes.GradientsSpec, wanted, "x").plan(suites.expand("pretraining"), "x")
