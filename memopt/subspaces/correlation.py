"""COAP's subspace (arXiv 2412.00071): correlation-aware update and low-cost recalibration.

Matrices are written for a right projection of ``G`` (m x n) by ``P`` (n x r); for a left one pass
``G.T`` and say so with ``transposed``, since the cosine always runs along dimension 1 of the
original. `memopt.subspaces.tucker` does the same for convolutions.
"""

from __future__ import annotations

import torch
from torch import Tensor

CORRELATION_UPDATES = ("official", "normalised", "off")
LEARNING_RATE = 0.1  # of the one gradient step on P, official code
MAX_NORM = 1.0  # its clipping, official code
COSINE_EPS = 1e-8
TINY = 1e-30


def sketch_basis(grad: Tensor, sketch: Tensor) -> Tensor:
    """Eq. 6, one warm-started subspace iteration: ``QR(G P)``, thin SVD of ``Q^T G``, P = Z.

    Args:
        grad: (m, n).
        sketch: (n, r): the previous P, or a Gaussian matrix at the start. ``r <= min(m, n)``.

    Returns:
        Orthonormal (n, r) whose span is that of ``G^T G P``.
    """
    orthonormal, _ = torch.linalg.qr(grad @ sketch)
    _, _, right = torch.linalg.svd(orthonormal.T @ grad, full_matrices=False)
    return right.T.contiguous()


def objective(grad: Tensor, basis: Tensor, exp_avg: Tensor, *, transposed: bool) -> Tensor:
    """Eq. 5: ``MSE(G P P^T, G) * (1 - mean cosine of M P^T and G along dimension 1)``.

    ``exp_avg`` is (m, r), the projected first moment before this step.
    """
    error = grad @ basis @ basis.T - grad
    estimate = exp_avg @ basis.T
    cosine = torch.nn.functional.cosine_similarity(estimate, grad, dim=0 if transposed else 1)
    return error.square().mean() * (1 - cosine.mean())


def objective_gradient(grad: Tensor, basis: Tensor, exp_avg: Tensor, *, transposed: bool) -> Tensor:
    """Analytic ``dL/dP`` of `objective`, (n, r); no autograd inside the optimizer.

    ``dL/dP = (1-C) 2/(mn) (G^T E P + E^T G P) - MSE (dC/dMh)^T M`` with ``E = G P P^T - G`` and
    ``Mh = M P^T``.
    """
    projected = grad @ basis
    error = projected @ basis.T - grad
    mse_gradient = (grad.T @ (error @ basis) + error.T @ projected) * (2 / grad.numel())
    cosine, slope = mean_cosine(exp_avg @ basis.T, grad, dim=0 if transposed else 1)
    return (1 - cosine) * mse_gradient - error.square().mean() * (slope.T @ exp_avg)


def mean_cosine(estimate: Tensor, grad: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean cosine similarity C along a dimension, and ``dC/d estimate``.

    With unit vectors ``g_i`` and ``m_i`` of G_i and Mh_i: ``dC/dMh_i = (g_i - c_i m_i) / |Mh_i|``,
    over the number of cosines. Norms are at least 1e-8, as in ``torch.cosine_similarity``.
    """
    grad = grad / grad.norm(dim=dim, keepdim=True).clamp_min(COSINE_EPS)
    norm = estimate.norm(dim=dim, keepdim=True).clamp_min(COSINE_EPS)
    estimate = estimate / norm
    cosine = (estimate * grad).sum(dim, keepdim=True)
    return cosine.mean(), (grad - cosine * estimate) / (norm * cosine.numel())


def correlation_step(
    grad: Tensor, basis: Tensor, exp_avg: Tensor, *, transposed: bool, variant: str
) -> Tensor:
    """One gradient step on P (Eq. 5).

    ``"official"`` takes G and M as they are: at the gradient scales of language models the step is
    then lost in rounding. ``"normalised"`` divides both by their RMS first. ``"off"`` keeps P.
    """
    if variant == "off":
        return basis
    if variant == "normalised":
        grad, exp_avg = unit_rms(grad), unit_rms(exp_avg)
    return descend(basis, objective_gradient(grad, basis, exp_avg, transposed=transposed))


def unit_rms(x: Tensor) -> Tensor:
    """The tensor divided by its root mean square."""
    return x / x.square().mean().sqrt().clamp_min(TINY)


def descend(basis: Tensor, slope: Tensor) -> Tensor:
    """One plain step of rate 0.1 with the gradient's norm clipped to 1."""
    clip = (MAX_NORM / (slope.norm() + 1e-6)).clamp_max(1.0)
    return basis - LEARNING_RATE * clip * slope
