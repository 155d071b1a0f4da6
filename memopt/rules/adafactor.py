"""Adafactor's rule (Shazeer & Stern, arXiv 1804.04235) with momentum on the scaled update.

The form of COAP's official code: factored second moment with decay ``1 - t^-0.8``, RMS clipping at
1, no relative step, no parameter scale; momentum over ``lr U``, so a schedule reaches it slowly.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from memopt.rules.base import Direction
from memopt.states import Buffer, compute_dtype, load, store

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


def normalised(
    grad: Tensor, state: dict[str, Any], eps: float = EPS, decay_rate: float = DECAY_RATE
) -> Tensor:
    """Updates the second moment and returns ``g / sqrt(v)`` (v of rank one from 2-D on).

    The decay at update t = 1, 2, ... is ``1 - t^decay_rate``: 0 at the first.
    """
    decay, square = 1.0 - float(state["step"]) ** decay_rate, grad.square().add_(eps)
    if grad.ndim < 2:
        exp_avg_sq = _average(state, "exp_avg_sq", square, decay)
        return torch.rsqrt(exp_avg_sq, out=square).mul_(grad)
    row = _average(state, "exp_avg_sq_row", square.mean(-1), decay)
    column = _average(state, "exp_avg_sq_col", square.mean(-2), decay)
    row_factor = (row / row.mean(-1, keepdim=True)).rsqrt_().unsqueeze(-1)
    # into the squares' memory: one tensor of the gradient's size serves all
    return torch.mul(row_factor, column.rsqrt().unsqueeze(-2), out=square).mul_(grad)


def _average(state: dict[str, Any], key: str, value: Tensor, decay: float) -> Tensor:
    """``moment <- decay moment + (1 - decay) value``."""
    moment = load(state, key).mul_(decay).add_(value, alpha=1.0 - decay)
    store(state, key, moment)
    return moment


def root_mean_square(value: Tensor) -> Tensor:
    """``sqrt(mean(x*x))``, on the device."""
    return torch.linalg.vector_norm(value) / value.numel() ** 0.5


def excess(update: Tensor, threshold: float = CLIP_THRESHOLD) -> Tensor:
    """``max(1, RMS(u) / threshold)``: what an update is divided by."""
    return (root_mean_square(update) / threshold).clamp_min(1.0)


def relative(param: Tensor, rate: float, least: float) -> Tensor:
    """``rate max(least, RMS(theta))``: a rate that follows the size of the weight."""
    return root_mean_square(param.to(compute_dtype(param.dtype))).clamp_min(least) * rate


def direction(coefficients: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """Momentum over ``lr u / max(1, RMS(u))``; parts without moments are divided by that excess."""
    update = normalised(coefficients, state)
    divisor = excess(update)
    exp_avg, beta1 = load(state, "exp_avg"), group["betas"][0]
    exp_avg.mul_(beta1).add_(update.div_(divisor) * group["lr"], alpha=1 - beta1)
    store(state, "exp_avg", exp_avg)
    return Direction(exp_avg, divisor / group["lr"], 1.0)
