"""COAP's subspace (arXiv 2412.00071): correlation-aware update and low-cost recalibration.

Everything is written for a right projection of ``G`` (m x n) by ``P`` (n x r); a left projection
passes ``G.T`` and says so with ``transposed`` where the rows of G matter.
"""

from __future__ import annotations

import torch
from torch import Tensor

CORRELATION_UPDATES = ("official", "normalised", "off")
LEARNING_RATE = 0.1  # of the one gradient step on P, official code
MAX_NORM = 1.0  # its clipping, official code
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
    """Eq. 5: ``MSE(G P P^T, G) * (1 - mean_i cos(row i of M P^T, row i of G))``.

    ``exp_avg`` is (m, r). With ``transposed`` the arguments describe ``G.T`` and the cosine runs
    over the rows of the original matrix, which are columns here (as the official code has it).
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
    axis = 0 if transposed else 1
    projected = grad @ basis
    error = projected @ basis.T - grad
    mse = error.square().mean()
    mse_gradient = (grad.T @ (error @ basis) + error.T @ projected) * (2 / grad.numel())

    estimate = exp_avg @ basis.T
    grad_norm = grad.norm(dim=axis, keepdim=True).clamp_min(TINY)
    estimate_norm = estimate.norm(dim=axis, keepdim=True).clamp_min(TINY)
    cosine = (estimate * grad).sum(axis, keepdim=True) / (estimate_norm * grad_norm)
    slope = grad / (estimate_norm * grad_norm) - cosine * estimate / estimate_norm.square()
    cosine_gradient = (slope / cosine.numel()).T @ exp_avg
    return (1 - cosine.mean()) * mse_gradient - mse * cosine_gradient


def correlation_step(
    grad: Tensor, basis: Tensor, exp_avg: Tensor, *, transposed: bool, variant: str
) -> Tensor:
    """One gradient step on P (Eq. 5): rate 0.1, gradient norm clipped to 1.

    ``"official"`` takes G and M as they are: at the gradient scales of language models the step is
    then lost in rounding. ``"normalised"`` divides both by their RMS first. ``"off"`` keeps P.
    """
    if variant == "off":
        return basis
    if variant == "normalised":
        grad = grad / grad.square().mean().sqrt().clamp_min(TINY)
        exp_avg = exp_avg / exp_avg.square().mean().sqrt().clamp_min(TINY)
    slope = objective_gradient(grad, basis, exp_avg, transposed=transposed)
    clip = (MAX_NORM / (slope.norm() + 1e-6)).clamp_max(1.0)
    return basis - LEARNING_RATE * clip * slope
