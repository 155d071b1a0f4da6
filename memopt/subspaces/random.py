"""Random projections drawn from a seed, for Flora, APOLLO and RSO.

A projection P of one side of length ``length`` has independent entries N(0, 1/r), so that
``E[P P^T] = I``: to project and to project back is the identity on average. Nobody has to keep P:
the same key draws the same numbers again.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from memopt.seeds import generator


def gaussian(length: int, rank: int, *key: str | int, like: Tensor) -> Tensor:
    """P, (length, rank), with entries N(0, 1/rank).

    Drawn in float32 by a CPU generator, so that a key means the same numbers on every device and
    in every precision. As in `memopt.subspaces.projection` it is used as ``G P`` or ``P^T G``.

    Args:
        length: of the side that is reduced.
        rank: r; may exceed ``length``.
        *key: for example ``projection_seed, parameter name, refresh number``.
        like: tensor whose device and dtype the result takes.
    """
    sample = torch.randn((length, rank), generator=generator(*key), device="cpu")
    return sample.mul_(rank**-0.5).to(device=like.device, dtype=like.dtype)


def haar(length: int, rank: int, *key: str | int, like: Tensor) -> Tensor:
    """P, (length, rank), uniform among those with ``P^T P = (length / rank) I``; rank <= length.

    The Q of a Gaussian matrix, with the signs that make R's diagonal positive. Drawn on the CPU,
    as `gaussian`; for the rest see there.
    """
    sample = torch.randn((length, rank), generator=generator(*key), device="cpu")
    orthogonal, upper = torch.linalg.qr(sample)
    orthogonal = orthogonal * upper.diagonal().sign() * (length / rank) ** 0.5
    return orthogonal.to(device=like.device, dtype=like.dtype)


DISTRIBUTIONS: dict[str, Callable[..., Tensor]] = {"gaussian": gaussian, "haar": haar}
