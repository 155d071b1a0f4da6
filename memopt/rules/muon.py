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
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
EPS = 1e-7


def buffers(shape: tuple[int, ...]) -> dict[str, Buffer]:
    """The momentum."""
    return {"exp_avg": Buffer(shape)}


def direction(coefficients: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """``B <- mu B + (1-mu) G``; Nesterov's ``mu B + (1-mu) G``; orthogonalised at the end."""
    momentum = group["betas"][0]
    exp_avg = load(state, "exp_avg").lerp_(coefficients, 1 - momentum)
    store(state, "exp_avg", exp_avg)
    value = coefficients.lerp(exp_avg, momentum)
    return Direction(value, torch.ones_like(value[:1, :1]), group["lr"], finish=orthogonalise)


def orthogonalise(update: Tensor) -> Tensor:
    """Five Newton-Schulz steps to ``U V^T`` of the matrix, times ``max(1, rows / columns)^0.5``.

    The reference runs them in bfloat16; here they run in compute precision.
    """
    rows, columns = update.shape
    x = update.T if rows > columns else update
    x = x / (x.norm() + EPS)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    x = x.T if rows > columns else x
    return x * max(1.0, rows / columns) ** 0.5
