"""How much of a matrix's energy (squared Frobenius norm) a few of its coefficients hold.

What is compared, each at its own expense: GWT's approximation band, the coefficients or entries
that are largest, the singular directions (GaLore, COAP), and random directions. Shares of a matrix
without energy, or with an entry that is not finite, are NaN. The baselines are shares of
independent normal numbers. Arithmetic is float64, on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from memopt.subspaces import haar

LEVELS = (1, 2, 3, 4, 5)
SEED = 0  # of the permutation and of the random directions: of a length, always the same
GRID = 20_000  # points of the integral below


def band_share(matrix: Tensor, level: int) -> float:
    """Share of the Haar approximation band of the rows, (m, ceil(n / 2^level)) coefficients."""
    return _share(haar.approximate(matrix, level).square().sum(), matrix)


def expected_band_share(matrix: Tensor, level: int) -> float:
    """Mean of `band_share` over all permutations of the columns.

    With b = 2^level, the squared sum of a block of s columns is on average the sum of s squares
    and of s (s - 1) products of two different entries, whose mean is
    ``((sum x)^2 - sum x^2) / (n (n - 1))``; the band has these squared sums over b.
    """
    columns, block = matrix.shape[1], 2**level
    squares, sums = matrix.square().sum(), matrix.sum(1).square().sum()
    full, rest = divmod(columns, block)
    pairs = full * block * (block - 1) + rest * (rest - 1)
    product = (sums - squares) / (columns * (columns - 1)) if columns > 1 else sums.new_zeros(())
    return _share((squares + pairs * product) / block, matrix)


def largest_share(values: Tensor, kept: int) -> float:
    """Share of the ``kept`` largest magnitudes: no choice of as many holds more."""
    return _share(values.flatten().square().topk(min(kept, values.numel())).values.sum(), values)


def coefficients(matrix: Tensor, level: int) -> Tensor:
    """All Haar coefficients of the rows, padded as GWT pads them."""
    band, details = haar.forward(matrix, level)
    return torch.cat((band, *details), dim=1)


def singular_shares(matrix: Tensor) -> Tensor:
    """Share of the r strongest singular directions, at index r - 1; (min(m, n),)."""
    return _cumulative(torch.linalg.svdvals(_finite(matrix)).square(), matrix)


def random_shares(matrix: Tensor) -> Tensor:
    """Share of r orthonormal random directions of the shorter side, at index r - 1."""
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    rotated = _rotation(short.shape[0]) @ _finite(short)
    return _cumulative(rotated.square().sum(1), matrix)


def stable_rank(matrix: Tensor) -> float:
    """Energy over that of the strongest direction: 1 for rank 1, at most min(m, n)."""
    return 1 / float(singular_shares(matrix)[0])


def matched_rank(rows: int, columns: int, level: int) -> int:
    """Rank at which the shorter side's projection keeps as many numbers as the band of a level."""
    kept = rows * haar.approximation_width(columns, level)
    return max(round(kept / max(rows, columns)), 1)


def ranks(shortest: int) -> list[int]:
    """Powers of two up to the shorter side, and the shorter side."""
    return sorted({*(2**i for i in range(shortest.bit_length())), shortest})


def permutation(length: int) -> Tensor:
    """The fixed random order of a number of columns."""
    return torch.randperm(length, generator=torch.Generator().manual_seed(SEED))


def shares(matrix: Tensor) -> Iterator[dict[str, Any]]:
    """All rows of one matrix, (m, n): what is kept, and the share of the energy it holds.

    Keys ``choice, axis, order, level, rank, kept, share``, see `experiments.gradients`; ``level``
    and ``rank`` where they apply.
    """
    matrix = matrix.detach().to("cpu", torch.float64)
    for axis, rows in (("last", matrix), ("first", matrix.T)):
        permuted = rows[:, permutation(rows.shape[1])]
        for level in LEVELS:
            kept = rows.shape[0] * haar.approximation_width(rows.shape[1], level)
            band = {"choice": "band", "axis": axis, "level": level, "kept": kept}
            yield band | {"order": "own", "share": band_share(rows, level)}
            yield band | {"order": "permuted", "share": band_share(permuted, level)}
            yield band | {"order": "expected", "share": expected_band_share(rows, level)}
            if axis == "last":
                all_of_them = coefficients(rows, level)
                for choice, values in (("largest", all_of_them), ("entries", rows)):
                    head = band | {"choice": choice, "order": "own"}
                    yield head | {"share": largest_share(values, kept)}
    longest = max(matrix.shape)
    for choice, found in (("singular", singular_shares), ("random", random_shares)):
        cumulative = found(matrix)
        for rank in ranks(len(cumulative)):
            head = {"choice": choice, "rank": rank, "kept": rank * longest}
            yield head | {"share": float(cumulative[rank - 1])}


@cache
def _quantiles(aspect: float) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the number and of the energy of the strongest directions, both rising to 1.

    Squared singular values of independent numbers, with mean 1, have between
    ``(1 -+ sqrt c)^2`` the density ``sqrt((hi - x)(x - lo)) / (2 pi c x)`` (Marchenko and Pastur;
    c = min(m, n) / max(m, n)). With ``x = 1 + c + 2 sqrt(c) cos t`` their number is the integral of
    ``2 sin^2 t / (pi x)`` and their energy that of ``2 sin^2 t / pi``, from t = 0 on.
    """
    t = (np.arange(GRID) + 0.5) * math.pi / GRID
    energy = 2 * np.sin(t) ** 2 / math.pi
    number = energy / (1 + aspect + 2 * math.sqrt(aspect) * np.cos(t))
    return _rising(number), _rising(energy)


def _rising(density: np.ndarray) -> np.ndarray:
    """Shares up to each point of a grid, from 0 to 1."""
    return np.append(0.0, np.cumsum(density) / density.sum())


def independent_singular_share(rank: int, rows: int, columns: int) -> float:
    """Share of the r strongest directions of a large matrix of independent numbers."""
    short, long = sorted((rows, columns))
    number, energy = _quantiles(short / long)
    return float(np.interp(rank / short, number, energy))


def independent_largest_share(fraction: float) -> float:
    """Share of the largest magnitudes among independent normal numbers: ``q + 2 t phi(t)``."""
    from scipy.stats import norm

    t = norm.isf(fraction / 2)
    return float(fraction + 2 * t * norm.pdf(t))


@cache
def _rotation(size: int) -> Tensor:
    """A random orthogonal matrix (Haar measure, up to signs of rows)."""
    draw = torch.Generator().manual_seed(SEED)
    return torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=draw))[0].T


def _finite(matrix: Tensor) -> Tensor:
    """The matrix; zeros, whose shares are NaN, if an entry is not finite."""
    return matrix if bool(matrix.isfinite().all()) else torch.zeros_like(matrix)


def _share(part: Tensor, whole: Tensor) -> float:
    """``part`` of the energy of ``whole``; NaN for nothing of nothing."""
    share = float(part / whole.square().sum())
    return share if math.isfinite(share) else math.nan


def _cumulative(energies: Tensor, matrix: Tensor) -> Tensor:
    return energies.cumsum(0) / _finite(matrix).square().sum()
