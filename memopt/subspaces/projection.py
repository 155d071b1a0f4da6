"""Low-rank coordinates of a gradient matrix: one orthonormal basis P of one side.

Right: ``R = G P`` with P (n x r), for ``G`` (m x n); left: ``R = P^T G`` with P (m x r).
"""

from __future__ import annotations

import torch
from torch import Tensor

SIDES = ("std", "reverse_std", "left", "right")


def resolve_side(shape: tuple[int, int], side: str) -> str:
    """``"left"`` or ``"right"``; ``"std"`` reduces the shorter side, square matrices go right."""
    if side in ("left", "right"):
        return side
    tall = shape[0] >= shape[1]
    return "right" if tall == (side == "std") else "left"


def reduced(shape: tuple[int, int], side: str) -> int:
    """Length of the side that is reduced to the rank."""
    return shape[1] if resolve_side(shape, side) == "right" else shape[0]


def shapes(shape: tuple[int, int], side: str, rank: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of the basis P and of the projected gradient R."""
    rows, columns = shape
    if resolve_side(shape, side) == "right":
        return (columns, rank), (rows, rank)
    return (rows, rank), (rank, columns)


def project(grad: Tensor, basis: Tensor, side: str) -> Tensor:
    """``G P`` or ``P^T G``; ``side`` is ``"left"`` or ``"right"``."""
    return grad @ basis if side == "right" else basis.T @ grad


def back(coefficients: Tensor, basis: Tensor, side: str) -> Tensor:
    """``R P^T`` or ``P R``, in the gradient's shape."""
    return coefficients @ basis.T if side == "right" else basis @ coefficients


def svd_basis(grad: Tensor, rank: int, side: str) -> Tensor:
    """GaLore's basis: the first ``rank`` singular vectors of one side of G."""
    left, _, right = torch.linalg.svd(grad, full_matrices=False)
    return right[:rank].T.contiguous() if side == "right" else left[:, :rank].contiguous()
