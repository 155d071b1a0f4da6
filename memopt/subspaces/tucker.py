"""COAP's subspace of a convolution: Tucker-2, one basis for each channel mode.

Weight (O, I, K1, K2): ``core = G x1 P_O^T x2 P_I^T``; where K2 is 1 only mode O is projected.
`factors` maps a mode (0 or 1) to its orthonormal basis (channels, rank).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from memopt.subspaces.correlation import descend, mean_cosine, unit_rms

Factors = dict[int, Tensor]
PLAIN_ELEMENTS = 32 * 32 * 3 * 3
"""Convolutions of at most this many weights get plain Adam (official code)."""
MAX_SWEEPS = 100
TOLERANCE = 1e-4  # change of the relative error at which the sweeps stop


def ranks(shape: tuple[int, ...], rank: int | None, ratio: float | None) -> dict[int, int]:
    """Rank of each projected mode; ``ratio`` c gives ``floor(channels / sqrt(c))``, at least 1.

    A 1 x 1 convolution has one projected mode, which takes the whole ratio.
    """
    modes = (0,) if shape[-1] == 1 else (0, 1)
    if ratio is None:
        assert rank is not None
        return {mode: min(rank, shape[mode]) for mode in modes}
    each = ratio if len(modes) == 1 else math.sqrt(ratio)
    return {mode: min(max(int(shape[mode] / each), 1), shape[mode]) for mode in modes}


def mode_product(x: Tensor, matrix: Tensor, mode: int) -> Tensor:
    """``x`` multiplied along a mode by ``matrix`` (new, old)."""
    return torch.tensordot(matrix, x, dims=([1], [mode])).movedim(0, mode)


def project(grad: Tensor, factors: Factors) -> Tensor:
    """The core of a gradient."""
    for mode, basis in factors.items():
        grad = mode_product(grad, basis.T, mode)
    return grad


def back(core: Tensor, factors: Factors) -> Tensor:
    """A core in the gradient's shape."""
    for mode, basis in factors.items():
        core = mode_product(core, basis, mode)
    return core


def decompose(grad: Tensor, sizes: dict[int, int]) -> Factors:
    """Partial Tucker decomposition from scratch: HOSVD, then alternating sweeps.

    Args:
        grad: (O, I, K1, K2).
        sizes: rank of each mode.
    """
    factors = {mode: _leading(grad, mode, size) for mode, size in sizes.items()}
    total, previous = grad.norm().clamp_min(torch.finfo(grad.dtype).tiny), math.inf
    for _ in range(MAX_SWEEPS if len(sizes) > 1 else 0):
        for mode, size in sizes.items():
            others = {other: basis for other, basis in factors.items() if other != mode}
            factors[mode] = _leading(project(grad, others), mode, size)
        # factors are orthonormal, so the error is what the core's norm lacks
        error = float(1 - project(grad, factors).norm() / total)
        if abs(previous - error) < TOLERANCE:
            break
        previous = error
    return factors


def correlation_step(grad: Tensor, factors: Factors, exp_avg: Tensor, *, variant: str) -> Factors:
    """One gradient step on each factor (Eq. 5 with Tucker products); cosine along dimension 1."""
    if variant == "off":
        return factors
    if variant == "normalised":
        grad, exp_avg = unit_rms(grad), unit_rms(exp_avg)
    slopes = objective_gradients(grad, factors, exp_avg)
    return {mode: descend(basis, slopes[mode]) for mode, basis in factors.items()}


def objective(grad: Tensor, factors: Factors, exp_avg: Tensor) -> Tensor:
    """Eq. 5 for a convolution: ``MSE * (1 - mean cosine)``."""
    error = back(project(grad, factors), factors) - grad
    cosine = torch.nn.functional.cosine_similarity(back(exp_avg, factors), grad, dim=1)
    return error.square().mean() * (1 - cosine.mean())


def objective_gradients(grad: Tensor, factors: Factors, exp_avg: Tensor) -> Factors:
    """Analytic gradient of `objective` in each factor.

    With A the gradient projected to and from the other mode, unfolded along this one:
    ``2/N (E A^T P + A E^T P) (1-C) - MSE S N^T``, where S is dC/d(estimate) and N the moment
    projected back along the other mode.
    """
    error = back(project(grad, factors), factors) - grad
    cosine, slope = mean_cosine(back(exp_avg, factors), grad, dim=1)
    gradients = {}
    for mode, basis in factors.items():
        others = {other: factor for other, factor in factors.items() if other != mode}
        rest = _unfold(back(project(grad, others), others), mode)
        unfolded = _unfold(error, mode)
        mse_gradient = unfolded @ (rest.T @ basis) + rest @ (unfolded.T @ basis)
        moment = _unfold(back(exp_avg, others), mode)
        gradients[mode] = (1 - cosine) * mse_gradient * (2 / grad.numel()) - (
            error.square().mean() * (_unfold(slope, mode) @ moment.T)
        )
    return gradients


def _unfold(x: Tensor, mode: int) -> Tensor:
    return x.movedim(mode, 0).flatten(1)


def _leading(x: Tensor, mode: int, rank: int) -> Tensor:
    """The first left singular vectors of an unfolding, (channels, rank)."""
    unfolded = _unfold(x, mode)
    if unfolded.shape[1] < rank:  # more directions wanted than the unfolding has columns
        unfolded = torch.nn.functional.pad(unfolded, (0, rank - unfolded.shape[1]))
    return torch.linalg.svd(unfolded, full_matrices=False)[0][:, :rank].contiguous()
