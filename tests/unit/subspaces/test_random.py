"""Random projections: unbiased, of known spread, and functions of their key alone."""

import hashlib

import pytest
import torch

from memopt.subspaces import random

LIKE = torch.zeros((), dtype=torch.float64)


def test_entries_are_the_documented_draw() -> None:
    # key, hash and generator written out: checkpoints of regenerated projections depend on it
    seed = int.from_bytes(hashlib.sha256(b"7/layers.0.weight/3").digest()[:8], "big") >> 1
    expected = torch.randn(5, 2, generator=torch.Generator().manual_seed(seed)) / 2**0.5
    drawn = random.gaussian(5, 2, 7, "layers.0.weight", 3, like=torch.zeros(()))
    torch.testing.assert_close(drawn, expected, rtol=3e-7, atol=0)  # one rounding


def test_a_key_is_all_that_counts() -> None:
    first = random.gaussian(6, 3, 0, "a", 0, like=LIKE)
    torch.rand(10)  # the global generator plays no part
    assert torch.equal(first, random.gaussian(6, 3, 0, "a", 0, like=LIKE))
    # the same numbers in every precision
    assert torch.equal(first.float(), random.gaussian(6, 3, 0, "a", 0, like=torch.zeros(())))
    for other in ((1, "a", 0), (0, "b", 0), (0, "a", 1)):
        assert not torch.equal(first, random.gaussian(6, 3, *other, like=LIKE))


@pytest.mark.parametrize("length, rank", [(7, 3), (5, 1), (4, 9)])
def test_projecting_there_and_back_is_the_identity_on_average(length, rank) -> None:
    """``E[P P^T] = I``, each entry within 4 standard errors of the mean of 4000 seeds.

    Variance of an entry of P P^T for independent N(0, 1/r): 2/r on the diagonal, 1/r off it. The
    chance that one of at most 28 entries lies beyond 4 standard errors is below 0.2 %; seeds are
    fixed, so the test does not flicker.
    """
    draws = [random.gaussian(length, rank, seed, "w", 0, like=LIKE) for seed in range(4000)]
    mean = torch.stack([p @ p.T for p in draws]).mean(0)
    eye = torch.eye(length, dtype=torch.float64)
    error = ((1 + eye) / rank / len(draws)).sqrt()
    assert ((mean - eye).abs() < 4 * error).all()
    # and the interval is not slack: a projection of variance 1/length would miss it
    wrong = mean * rank / length
    assert ((wrong - eye).abs() > 4 * error).any()


def test_spread_of_the_estimate_falls_with_the_rank() -> None:
    # E|P P^T x|^2 = |x|^2 (1 + (length + 1) / r)
    length, x = 12, torch.ones(12, dtype=torch.float64) / 12**0.5
    for rank in (1, 4, 16):
        draws = [random.gaussian(length, rank, s, "x", 0, like=LIKE) for s in range(3000)]
        square = torch.stack([(p @ (p.T @ x)).square().sum() for p in draws]).mean()
        assert square == pytest.approx(1 + (length + 1) / rank, rel=0.15)
