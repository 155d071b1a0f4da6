"""Muon's rule (Jordan et al., 2024): momentum, then the nearest orthogonal matrix.

Orthogonalising has no meaning band by band, so it is applied where the update is back in the
weight's coordinates: for GWT to the momentum of the approximation together with the raw details.
No paper says how GWT and Muon are combined; this is memopt's choice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from memopt.rules.base import Direction
from memopt.states import Buffer, load, store

limited = False
by_rows = False
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7
ADJUSTMENTS = ("original", "match_rms_adamw")


def buffers(shape: tuple[int, ...]) -> dict[str, Buffer]:
    """The momentum."""
    return {"exp_avg": Buffer(shape)}


def direction(coefficients: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """``B <- mu B + (1-mu) G``; Nesterov's ``mu B + (1-mu) G``; orthogonalised at the end."""
    value = momentum(coefficients, state, group["betas"][0])
    return Direction(value, torch.ones_like(value[:1, :1]), group["lr"], finish=orthogonalise)


def momentum(
    grad: Tensor, state: dict[str, Any], factor: float, *, nesterov: bool = True
) -> Tensor:
    """Updates B and returns what is orthogonalised: a mix of B and G, or B (then do not modify)."""
    exp_avg = load(state, "exp_avg").lerp_(grad, 1 - factor)
    store(state, "exp_avg", exp_avg)
    return grad.lerp(exp_avg, factor) if nesterov else exp_avg


def orthogonalise(
    update: Tensor, adjust: str = "original", dtype: torch.dtype | None = None
) -> Tensor:
    """Five Newton-Schulz steps to ``U V^T`` of the matrix, times a factor of its shape.

    Args:
        update: (rows, columns).
        adjust: the factor: ``"original"``: ``max(1, rows / columns)^0.5``; ``"match_rms_adamw"``:
            ``0.2 max(rows, columns)^0.5``, at which the update's RMS is about AdamW's.
        dtype: of the iteration; the reference has bfloat16. Default: the update's own.

    Returns:
        The result in the update's dtype.
    """
    rows, columns = update.shape
    x = (update.T if rows > columns else update).to(dtype or update.dtype)
    x = x / (x.norm() + EPS)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = (x.T if rows > columns else x).to(update.dtype)
    return x * shape_factor(rows, columns, adjust)


def shape_factor(rows: int, columns: int, adjust: str) -> float:
    """The factor of `orthogonalise`, as ``adjust_lr_fn`` of ``torch.optim.Muon``."""
    if adjust == "match_rms_adamw":
        return float(0.2 * max(rows, columns) ** 0.5)
    return float(max(1.0, rows / columns) ** 0.5)
