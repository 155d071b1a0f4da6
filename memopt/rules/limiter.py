"""The norm-growth limiter of Fira (arXiv 2410.01623), used by GWT too."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from memopt.states import sharding

EPS = 1e-8


def norm_growth_divisor(
    update: Tensor, state: dict[str, Any], limit: float | None
) -> Tensor | float:
    """Fira's limiter: the c by which an update is divided so that its norm grows at most so much.

    ``c = max(||U|| / (s + 1e-8), gamma) / gamma``, ``s <- ||U|| / c``; c = 1 as long as s is zero:
    at the first step, and after zero gradients (else a weight whose first gradient is zero, such
    as LoRA's A, would creep up by 1 % a step from nothing).
    Stays on the device: no synchronisation.
    """
    if limit is None:
        return 1.0
    norm, before = sharding.norm(update), state["update_norm"]
    divisor = (norm / (before + EPS)).clamp_min(limit) / limit
    divisor = torch.where(before > 0, divisor, torch.ones_like(divisor))
    state["update_norm"].copy_(norm / divisor)
    return divisor
