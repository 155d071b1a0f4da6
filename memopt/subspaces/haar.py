"""Orthonormal Haar transform of the rows of a matrix, any level, any width (GWT).

One level: ``a_j = (x_2j + x_2j+1)/sqrt 2``, ``d_j = (x_2j - x_2j+1)/sqrt 2``; the next level
transforms ``a``. A width that 2^L does not divide is padded with zeros on the right, which equals
the official code's padding of every odd level, and cut after the inverse.

`forward` and `inverse` are the transform as the paper has it. `approximate`, `spread` and
`scaled_details` are the fast form that the optimizer uses: in a block of 2^L columns all bands
share one denominator, so no detail band is ever built. The tests hold the two equal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SQRT_HALF = math.sqrt(0.5)
MAX_LEVEL = 16  # rows are padded to a multiple of 2^level


def approximation_width(width: int, level: int) -> int:
    """Columns of the approximation band: ``ceil(width / 2**level)``."""
    return -(-width // 2**level)


def pad(x: Tensor, level: int) -> Tensor:
    """Zeros on the right up to a multiple of ``2**level`` columns."""
    missing = -x.shape[-1] % 2**level
    return torch.nn.functional.pad(x, (0, missing)) if missing else x


def forward(x: Tensor, level: int) -> tuple[Tensor, list[Tensor]]:
    """``(A_L, [D_L, ..., D_1])`` of the last axis, padded to a multiple of ``2**level``."""
    approximation = pad(x, level)
    details: list[Tensor] = []
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
    return pad(x, level).unflatten(-1, (-1, 2**level)).sum(-1).mul_(2 ** (-level / 2))


def spread(band: Tensor, width: int, level: int) -> Tensor:
    """Inverse of the approximation band with zero details, cut to ``width`` columns."""
    blocks = (band * 2 ** (-level / 2)).unsqueeze(-1).expand(*band.shape, 2**level)
    return blocks.flatten(-2)[..., :width]


def scaled_details(x: Tensor, band: Tensor, divisor: Tensor, level: int) -> Tensor:
    """Inverse of zero approximation and details ``D_l / N_l``, N repeated to each band's width.

    Within a block this is ``(x - mean of the block) / N``.

    Args:
        x: (m, n).
        band: its approximation band, (m, ceil(n / 2^level)).
        divisor: N, broadcastable to ``band``.
        level: L.
    """
    blocks = pad(x, level).unflatten(-1, (-1, 2**level))
    details = blocks - (band * 2 ** (-level / 2)).unsqueeze(-1)
    return details.div_(divisor.expand_as(band).unsqueeze(-1)).flatten(-2)[..., : x.shape[-1]]


def explicit_direction(x: Tensor, value: Tensor, divisor: Tensor, level: int) -> Tensor:
    """The paper's direction, band by band: ``HaarInverse([U, D_L / N_L, ..., D_1 / N_1])``.

    `spread` of U plus `scaled_details` of x is the same without the bands; tests hold them equal.

    Args:
        x: gradient, (m, n).
        value: U, the direction on the approximation band, (m, ceil(n / 2^level)).
        divisor: N of the approximation band, same shape.
        level: L.
    """
    _, details = forward(x, level)
    scaled = []
    for detail in details:
        scaled.append(detail / divisor)
        divisor = divisor.repeat_interleave(2, dim=-1)
    return inverse(value, scaled, x.shape[-1])
