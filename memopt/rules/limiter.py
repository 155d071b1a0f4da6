"""The norm-growth limiter of Fira (arXiv 2410.01623), used by GWT too."""

from __future__ import annotations

from typing import Any

from torch import Tensor

EPS = 1e-8


def norm_growth_divisor(
    update: Tensor, state: dict[str, Any], limit: float | None
) -> Tensor | float:
    """Fira's limiter: the c by which an update is divided so that its norm grows at most so much.

    ``c = max(||U|| / (s + 1e-8), gamma) / gamma``, ``s <- ||U|| / c``; c = 1 at the first step.
    Stays on the device: no synchronisation.
    """
    if limit is None:
        return 1.0
    norm = update.norm()
    divisor = (norm / (state["update_norm"] + EPS)).clamp_min(limit) / limit
    if state["step"] == 1:
        divisor = divisor.new_ones(())
    state["update_norm"].copy_(norm / divisor)
    return divisor
