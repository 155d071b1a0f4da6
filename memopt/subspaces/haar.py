"""Orthonormal Haar transform of the rows of a matrix, any level, any width (GWT).

One level: ``a_j = (x_2j + x_2j+1)/sqrt 2``, ``d_j = (x_2j - x_2j+1)/sqrt 2``; the next level
transforms ``a``. A width that 2^L does not divide is padded with zeros on the right, which is the
official code's padding of every odd level, and cut after the inverse.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SQRT_HALF = math.sqrt(0.5)


def approximation_width(width: int, level: int) -> int:
    """Columns of the approximation band: ``ceil(width / 2**level)``."""
    return -(-width // 2**level)


def pad(x: Tensor, level: int) -> Tensor:
    """Zeros on the right up to a multiple of ``2**level`` columns."""
    missing = -x.shape[-1] % 2**level
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def forward(x: Tensor, level: int) -> tuple[Tensor, list[Tensor]]:
    """``(A_L, [D_L, ..., D_1])`` of the last axis, padded to a multiple of ``2**level``."""
    approximation, details = pad(x, level), []
    for _ in range(level):
        even, odd = approximation[..., 0::2], approximation[..., 1::2]
        details.insert(0, (even - odd) * SQRT_HALF)
        approximation = (even + odd) * SQRT_HALF
    return approximation, details


def inverse(approximation: Tensor, details: list[Tensor], width: int) -> Tensor:
    """Inverse of `forward`, cut to ``width`` columns."""
    for detail in details:
        pair = torch.stack((approximation + detail, approximation - detail), dim=-1)
        approximation = pair.flatten(-2) * SQRT_HALF
    return approximation[..., :width]


def approximate(x: Tensor, level: int) -> Tensor:
    """The approximation band alone: ``2**(level/2)`` times the mean of each block of columns."""
    blocks = pad(x, level).unflatten(-1, (-1, 2**level))
    return blocks.sum(-1) * 2 ** (-level / 2)
