"""Arguments that methods share, and the checks of single values."""

from __future__ import annotations

import math
from typing import Any, TypedDict

from torch import Tensor

NONFINITE = ("raise", "skip", "ignore")


class Common(TypedDict, total=False):
    """Arguments that every memopt optimizer takes beside its own.

    Attributes:
        weight_decay: decoupled decay, ``W <- W (1 - lr * weight_decay)``; default 0.
        nonfinite: what to do with NaN or infinite gradients: ``"raise"`` (default) a named error
            before any weight changes, ``"skip"`` the update and count it in
            ``group["skipped_steps"]``, or ``"ignore"`` (no check; the only policy without one
            device synchronisation a step).
        maximize: ascend instead of descend; default False.
        rounding: how low-precision weights take an update: ``"nearest"`` (default) or
            ``"stochastic"`` (bfloat16: right on average, so small updates are not lost).
    """

    weight_decay: float
    nonfinite: str
    maximize: bool
    rounding: str


COMMON_DEFAULTS: dict[str, Any] = {
    "weight_decay": 0.0,
    "nonfinite": "raise",
    "maximize": False,
    "rounding": "nearest",
}


def positive(group: dict[str, Any], key: str, *, zero: bool = False) -> None:
    """Raises ``ValueError`` unless ``group[key]`` is above zero (or zero, where allowed)."""
    value = group[key]
    number = isinstance(value, int | float | Tensor) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        least = "of zero or more" if zero else "above zero"
        raise ValueError(f"{key} must be a finite number {least}, got {value!r}")


def whole(group: dict[str, Any], key: str, *, least: int, most: float = math.inf) -> None:
    """Raises ``ValueError`` unless ``group[key]`` is an integer from ``least`` to ``most``."""
    value = group[key]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        span = f"{least} or more" if most == math.inf else f"{least} to {most}"
        raise ValueError(f"{key} must be an integer of {span}, got {value!r}")


def factored(group: dict[str, Any]) -> None:
    """Raises ``ValueError`` for a constant of Adafactor's second moment that is out of range."""
    positive(group, "clip_threshold")
    eps = group["eps"]
    if not (isinstance(eps, tuple | list) and len(eps) == 2 and min(eps) > 0):
        raise ValueError(f"eps must be two numbers above zero, got {eps!r}")
    if not group["decay_rate"] < 0:
        raise ValueError(f"decay_rate must be below zero, got {group['decay_rate']!r}")
