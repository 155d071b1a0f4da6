"""Adafactor's rule (Shazeer & Stern, arXiv 1804.04235) with momentum on the scaled update.

The form of COAP's official code: factored second moment with decay ``1 - t^-0.8``, RMS clipping at
1, no relative step, no parameter scale; momentum over ``lr U``, so a schedule reaches it slowly.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memopt.rules.base import Direction
from memopt.states import Buffer, load, store

limited = False
by_rows = False
DECAY_RATE = -0.8
EPS = 1e-30  # added to squared gradients
CLIP_THRESHOLD = 1.0  # largest RMS of the update


def buffers(shape: tuple[int, ...]) -> dict[str, Buffer]:
    """First moment in full; row and column means of the squares."""
    return {"exp_avg": Buffer(shape), **factored_buffers(shape)}


def factored_buffers(shape: tuple[int, ...]) -> dict[str, Buffer]:
    """Second moment: means over the last axis and over the last but one; full below 2-D."""
    if len(shape) < 2:
        return {"exp_avg_sq": Buffer(shape, signed=False)}
    return {
        "exp_avg_sq_row": Buffer(shape[:-1], signed=False),
        "exp_avg_sq_col": Buffer((*shape[:-2], shape[-1]), signed=False),
    }


def beta2(step: int) -> float:
    """Decay of the second moment at update t = 1, 2, ...: ``1 - t^-0.8``, so 0 at the first."""
    return 1.0 - float(step) ** DECAY_RATE


def normalised(grad: Tensor, state: dict[str, Any], eps: float = EPS) -> Tensor:
    """Updates the second moment and returns ``g / sqrt(v)`` (v of rank one from 2-D on)."""
    decay, square = beta2(state["step"]), grad.square().add_(eps)
    if grad.ndim < 2:
        exp_avg_sq = load(state, "exp_avg_sq").lerp_(square, 1 - decay)
        store(state, "exp_avg_sq", exp_avg_sq)
        return grad * exp_avg_sq.rsqrt()
    row = load(state, "exp_avg_sq_row").lerp_(square.mean(-1), 1 - decay)
    column = load(state, "exp_avg_sq_col").lerp_(square.mean(-2), 1 - decay)
    store(state, "exp_avg_sq_row", row)
    store(state, "exp_avg_sq_col", column)
    row_factor = (row / row.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    return grad * row_factor * column.rsqrt().unsqueeze(-2)


def excess(update: Tensor, threshold: float = CLIP_THRESHOLD) -> Tensor:
    """``max(1, RMS(u) / threshold)``: what an update is divided by, on the device."""
    return (update.norm() / (update.numel() ** 0.5 * threshold)).clamp_min(1.0)


def direction(coefficients: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """Momentum over ``lr u / max(1, RMS(u))``; parts without moments are divided by that excess."""
    update = normalised(coefficients, state)
    divisor = excess(update)
    exp_avg, beta1 = load(state, "exp_avg"), group["betas"][0]
    exp_avg.mul_(beta1).add_(update.div_(divisor) * group["lr"], alpha=1 - beta1)
    store(state, "exp_avg", exp_avg)
    return Direction(exp_avg, divisor / group["lr"], 1.0)
