"""Adam's rule (Kingma & Ba, arXiv 1412.6980) on coefficients of any shape."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memopt.rules.base import Direction
from memopt.states import Buffer, load, store

limited = True
by_rows = True


def buffers(shape: tuple[int, ...]) -> dict[str, Buffer]:
    """First and second moment, each in the shape of the coefficients."""
    return {"exp_avg": Buffer(shape), "exp_avg_sq": Buffer(shape, signed=False)}


def direction(coefficients: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """``m / (sqrt(v) + eps)``, times ``lr sqrt(1-b2^t) / (1-b1^t)``."""
    return _direction(*moments(coefficients, state, group["betas"], group["eps"]), state, group)


def settled(_: Tensor | None, state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """`direction` from moments that hold the coefficients already (see `fold`)."""
    denominator = load(state, "exp_avg_sq").sqrt().add_(group["eps"])
    return _direction(load(state, "exp_avg"), denominator, state, group)


def _direction(
    exp_avg: Tensor, denominator: Tensor, state: dict[str, Any], group: dict[str, Any]
) -> Direction:
    step_size = group["lr"] * bias_correction(state["step"], group["betas"])
    return Direction(exp_avg / denominator, denominator, step_size)


def moments(
    grad: Tensor, state: dict[str, Any], betas: tuple[float, float], eps: float
) -> tuple[Tensor, Tensor]:
    """Updates both moments and returns ``(m, sqrt(v) + eps)``, in compute precision.

    ``m <- b1 m + (1-b1) g``, ``v <- b2 v + (1-b2) g*g``; no bias correction (see
    `bias_correction`). With float32 storage the returned ``m`` is the live state: do not modify it.
    """
    exp_avg, exp_avg_sq = fold(grad, state, betas, first=True)
    return exp_avg, exp_avg_sq.sqrt().add_(eps)


def fold(
    grad: Tensor, state: dict[str, Any], betas: tuple[float, float], *, first: bool
) -> tuple[Tensor, Tensor]:
    """Adds one (micro-)gradient to both moments; the ``first`` of an update decays them.

    Returns:
        m and v in compute precision; the live state under float32 storage.
    """
    exp_avg, exp_avg_sq = load(state, "exp_avg"), load(state, "exp_avg_sq")
    if first:
        exp_avg.mul_(betas[0])
        exp_avg_sq.mul_(betas[1])
    exp_avg.add_(grad, alpha=1 - betas[0])
    exp_avg_sq.addcmul_(grad, grad, value=1 - betas[1])
    store(state, "exp_avg", exp_avg)
    store(state, "exp_avg_sq", exp_avg_sq)
    return exp_avg, exp_avg_sq


def bias_correction(step: int, betas: tuple[float, float]) -> float:
    """``sqrt(1-b2^t) / (1-b1^t)`` as one scalar on the step size; eps is not rescaled.

    This is the form of GaLore's, GWT's and COAP's official code. ``torch.optim.AdamW`` divides
    ``sqrt(v)`` by ``sqrt(1-b2^t)`` before it adds eps: equal up to the weight of eps.
    """
    return float((1 - betas[1] ** step) ** 0.5 / (1 - betas[0] ** step))


def corrected(exp_avg: Tensor, exp_avg_sq: Tensor, step: float, group: dict[str, Any]) -> Tensor:
    """``lr mhat / (sqrt(vhat) + eps)``: the form and the rounding of ``torch.optim.AdamW``."""
    beta1, beta2 = group["betas"]
    root = (1 - beta2**step) ** 0.5
    denominator = exp_avg_sq.sqrt().div_(root).add_(group["eps"])
    return (exp_avg * (group["lr"] / (1 - beta1**step))).div_(denominator)
