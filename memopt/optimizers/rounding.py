"""How a low-precision weight takes a float32 update."""

from __future__ import annotations

import torch
from torch import Tensor

from memopt.seeds import generator

MODES = ("nearest", "stochastic")
STALL_CHECK_STEP = 10
"""At this update of a parameter the run is checked, once, for updates that round to nothing."""
STALLED_SHARE = 0.9


def copy_stochastic_(param: Tensor, weight: Tensor, *, name: str, step: int) -> None:
    """Writes float32 ``weight`` to a bfloat16 ``param``, rounding up or down at random.

    The chance of each neighbour is proportional to the distance from the other, so the rounded
    weight is right on average and small updates are not lost. The noise is drawn from the name and
    the step: a resumed run draws the same.
    """
    if param.dtype is not torch.bfloat16:
        raise ValueError(f"stochastic rounding needs bfloat16 weights, {name!r} is {param.dtype}")
    # bfloat16 is the upper half of float32: add 16 random bits below, then cut them off
    noise = torch.randint(
        0, 1 << 16, weight.shape, generator=generator("rounding", name, step), dtype=torch.int32
    )
    bits = weight.contiguous().view(torch.int32) + noise.to(weight.device)
    rounded = (bits & ~0xFFFF).view(torch.float32)
    param.copy_(torch.where(weight.isfinite(), rounded, weight))


def stalled(param: Tensor, weight: Tensor) -> bool:
    """Whether nearly all elements that should change keep their value when rounded to nearest."""
    wanted = weight != param
    lost = wanted & (weight.to(param.dtype) == param)
    return bool(wanted.any()) and bool(lost.sum() > STALLED_SHARE * wanted.sum())
