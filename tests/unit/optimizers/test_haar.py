"""The Haar transform against PyWavelets and its algebra."""

import numpy
import pytest
import pywt
import torch
from hypothesis import given
from hypothesis import strategies as st

from memopt.subspaces import haar

widths, levels, seeds = st.integers(1, 70), st.integers(0, 5), st.integers(0, 2**31)


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, dtype=torch.float64, generator=draw)


def test_golden_transform() -> None:
    approximation, (second, first) = haar.forward(torch.tensor([[1.0, 2.0, 3.0, 5.0]]), 2)
    assert approximation.tolist() == [[pytest.approx(5.5)]]
    assert second.tolist() == [[pytest.approx(-2.5)]]
    assert first.tolist() == [[pytest.approx(-0.70710678), pytest.approx(-1.41421356)]]


@given(columns=widths, level=levels, seed=seeds)
def test_equals_pywavelets_level_by_level(columns, level, seed) -> None:
    x = matrix(3, columns, seed)
    approximation, details = haar.forward(x, level)
    # pywt.wavedec refuses nothing but warns beyond its useful depth, so go level by level
    band = x.numpy()
    theirs = []
    for _ in range(level):
        band, detail = pywt.dwt(band, "haar", mode="zero", axis=-1)
        theirs.insert(0, detail)
    numpy.testing.assert_allclose(approximation, band, rtol=0, atol=1e-13)
    for ours, expected in zip(details, theirs, strict=True):
        # ours pads once to a multiple of 2^L: what it has beyond PyWavelets' width is zero
        width = expected.shape[-1]
        numpy.testing.assert_allclose(ours[..., :width], expected, rtol=0, atol=1e-13)
        assert not ours[..., width:].any()


@given(columns=widths, level=levels, seed=seeds)
def test_exact_inverse_isometry_and_width(columns, level, seed) -> None:
    x = matrix(2, columns, seed)
    approximation, details = haar.forward(x, level)
    assert approximation.shape[-1] == haar.approximation_width(columns, level)
    assert approximation.shape[-1] == -(-columns // 2**level)
    torch.testing.assert_close(haar.inverse(approximation, details, columns), x)
    energy = sum(band.square().sum() for band in (approximation, *details))
    torch.testing.assert_close(energy, x.square().sum())
    torch.testing.assert_close(haar.approximate(x, level), approximation)


@pytest.mark.parametrize("level", [0, 1, 2, 3, 4])
def test_matrix_is_orthonormal(level) -> None:
    approximation, details = haar.forward(torch.eye(16, dtype=torch.float64), level)
    transform = torch.cat((approximation, *details), dim=1)
    torch.testing.assert_close(transform @ transform.T, torch.eye(16, dtype=torch.float64))
