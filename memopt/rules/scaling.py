"""Norm-based scaling (Fira, APOLLO): what Adam does to the size of a projected gradient."""

from __future__ import annotations

import torch
from torch import Tensor

EPS = 1e-8  # added to the norm of R, Fira's code


def scale(direction: Tensor, coefficients: Tensor, side: str | None) -> Tensor:
    """``||psi_j|| / (||R_j|| + 1e-8)`` for each channel j of R, or for the whole of R.

    A channel is what the projection leaves alone: a row of G for ``side="right"`` (``R = G P``), a
    column for ``"left"``.

    Args:
        direction: psi, what Adam makes of R.
        coefficients: R.
        side: ``"left"``, ``"right"``, or None for one factor for the whole tensor.

    Returns:
        Factors that broadcast over G: (m, 1), (1, n) or (1, 1).
    """
    axis = {"right": 1, "left": 0, None: (0, 1)}[side]
    norms = (torch.linalg.vector_norm(x, dim=axis, keepdim=True) for x in (direction, coefficients))
    numerator, denominator = norms
    return numerator / denominator.add_(EPS)
