"""AdamA's steps beside Adam's: closed forms, AdamA's own state, and a run that is measured."""

from pathlib import Path

import numpy as np
import pytest
import torch

import memopt
from experiments import micro_batches, models, pretrain, training
from experiments.errors import UserError
from experiments.micro_batches import micro_squares
from experiments.step_ratio import signal_to_noise, step_ratio

from .conftest import make_run, run_content

BATCH = 16
COUNTS = [1, 2, 4, 8, 16]


def ratios(rows: torch.Tensor) -> dict[int, float]:
    """Pooled step ratio of a batch for each N."""
    squares = micro_squares(rows, BATCH, COUNTS)
    return {n: float((squares[1].sum() / squares[n].sum()).sqrt()) for n in COUNTS}


@pytest.mark.parametrize(("mu_by_sigma", "printed"), [(0, 1.0), (1, 2.12), (3, 2.70)])
def test_formula_at_eight_micro_batches(mu_by_sigma: float, printed: float) -> None:
    """Values of AdamA's fact sheet, whose mu and sigma are those of one micro-gradient."""
    assert step_ratio(8 * mu_by_sigma**2, 8) == pytest.approx(printed, abs=5e-3)


def test_formula_at_its_ends() -> None:
    counts = np.array(COUNTS)
    assert (step_ratio(0.0, counts) == 1).all()
    assert (step_ratio(np.array([0.1, 7.0]), 1) == 1).all()
    np.testing.assert_allclose(step_ratio(1e12, counts), np.sqrt(counts), rtol=1e-10)


def test_signal_to_noise_inverts_the_two_expectations() -> None:
    signal, noise = 0.3, 0.2  # mu^2 and s^2/B
    for count in COUNTS[1:]:
        rho = signal_to_noise(signal + noise, signal / count + noise, count)
        assert rho == pytest.approx(1.5)
    assert signal_to_noise(1.0, 1 / 4, 4) == np.inf
    assert np.isnan(signal_to_noise(0.0, 0.0, 4))


def test_identical_rows_give_the_root_of_n_and_noise_gives_one() -> None:
    draw = torch.Generator().manual_seed(0)
    same = torch.randn(50, generator=draw).expand(BATCH, 50)
    assert ratios(same) == pytest.approx({n: n**0.5 for n in COUNTS})
    noise = torch.randn(BATCH, 40_000, generator=draw)
    assert ratios(noise) == pytest.approx(dict.fromkeys(COUNTS, 1.0), abs=0.02)
    assert ratios(noise)[1] == 1


def test_noisy_rows_follow_the_formula() -> None:
    draw = torch.Generator().manual_seed(1)
    mean, spread = 0.5, torch.linspace(0.5, 3.0, 40_000)  # the formula holds for sums
    found = ratios(mean + spread * torch.randn(BATCH, 40_000, generator=draw))
    rho = BATCH * mean**2 / float(spread.square().mean())
    assert found == pytest.approx({n: step_ratio(rho, n) for n in COUNTS}, rel=0.02)


@pytest.mark.parametrize("count", COUNTS)
def test_squares_are_those_that_adama_keeps(count: int) -> None:
    draw = torch.Generator().manual_seed(2)
    data = torch.randn(BATCH, 5, generator=draw, dtype=torch.float64)
    weight = torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
    optimizer = memopt.AdamA([weight], lr=0.0, betas=(0.9, 0.75))
    for part in data.chunk(count):
        ((part @ (weight + 1)).square().mean() / count).backward()
    gradients = 2 * data.sum(1, keepdim=True) * data
    wanted = optimizer.state[weight]["exp_avg_sq"] / (1 - 0.75)
    torch.testing.assert_close(micro_squares(gradients, BATCH, [count])[count], wanted)


def test_a_measured_run_ends_as_an_unmeasured_one(prepared: Path, tmp_path: Path) -> None:
    run = make_run(run_content())
    table = micro_batches.measure(run, prepared, tmp_path / "measured", [1, 2, 8], [2, 12])
    task = pretrain.make_task(run, prepared)
    optimizer, _ = training.make_optimizer(run, task.model)
    training.train(run, task, optimizer, tmp_path / "plain", None)
    assert set(table.weights_sha256) == {models.weights_sha256(task.model)}
    assert table.split_error.max() < 1e-5
    weights = len(list(task.model.parameters()))
    kinds = ["embedding", "attention", "mlp", "norm", "head", "all"]
    assert len(table) == (weights + len(kinds)) * 3 * 2 * 2  # N, updates, moments and window
    one, eight = (table[table.micro_batches == n] for n in (1, 8))
    assert (one[["ratio", "ratio_even", "predicted"]] == 1).all(axis=None)
    assert (eight.ratio <= 8**0.5 + 1e-6).all() and (eight.ratio != 1).all()
    whole = eight[eight.name.isna()].groupby("kind").elements.first()
    assert sorted(whole.index) == sorted(kinds)
    assert whole["all"] == whole.drop("all").sum() == set(table.parameters).pop()
    # after two updates the window has seen what the moments have, but for the decay of the first
    first = eight[eight.step == 2].set_index(["name", "kind"])
    moments, window = (first[first.over == over].ratio for over in ("moments", "window"))
    np.testing.assert_allclose(moments, window, rtol=1e-3)


@pytest.mark.parametrize(
    ("counts", "steps", "changed", "message"),
    [
        ([1, 3], [1], {}, r"--micro-batches \[3\]: expected divisors of the batch of 8 rows"),
        ([2], [0, 13], {}, r"--steps \[0, 13\]: it has updates 1 to 12"),
        ([2], [1], {"max_grad_norm": 1.0}, "train.max_grad_norm is 1.0; only 0"),
    ],
)
def test_what_cannot_be_measured(counts: list, steps: list, changed: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        micro_batches.check(make_run(run_content(**changed)), counts, steps)


def test_what_is_measured_where_nothing_is_named() -> None:
    run = make_run(run_content(steps=400, batch_size=24))
    assert micro_batches.chosen(run, None, None) == ([1, 2, 4, 8], [2, 10, 40, 100, 200, 400])
    assert micro_batches.chosen(run, "6,3", "7") == ([3, 6], [7])
    with pytest.raises(UserError, match="--steps '1-3': expected whole numbers"):
        micro_batches.chosen(run, "2", "1-3")


def test_only_adamw_is_measured() -> None:
    run = make_run(run_content(), name="adama", lr=1e-2)
    with pytest.raises(UserError, match="method is adama; only adamw can be measured"):
        micro_batches.check(run, [2], [1])
