"""Adam-mini's rule (Zhang et al., arXiv 2406.16793): one second moment for each row.

For a linear weight (out, in) a row is one output neuron, the block that the paper gives values,
attention projections and MLPs.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memopt.rules import adam
from memopt.rules.base import Direction
from memopt.states import Buffer, load, store

limited = True


def buffers(shape: tuple[int, ...]) -> dict[str, Buffer]:
    """First moment in full, one second moment a row."""
    return {
        "exp_avg": Buffer(shape),
        "exp_avg_sq": Buffer((shape[0], *(1,) * (len(shape) - 1)), signed=False),
    }


def direction(coefficients: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """``m / (sqrt(v_row) + eps)`` with ``v_row <- b2 v_row + (1-b2) mean of the row's g*g``."""
    beta1, beta2 = group["betas"]
    exp_avg, exp_avg_sq = load(state, "exp_avg"), load(state, "exp_avg_sq")
    exp_avg.mul_(beta1).add_(coefficients, alpha=1 - beta1)
    mean_square = coefficients.square().mean(dim=tuple(range(1, coefficients.ndim)), keepdim=True)
    exp_avg_sq.mul_(beta2).add_(mean_square, alpha=1 - beta2)
    denominator = exp_avg_sq.sqrt().add_(group["eps"])
    store(state, "exp_avg", exp_avg)
    store(state, "exp_avg_sq", exp_avg_sq)
    step_size = group["lr"] * adam.bias_correction(state["step"], group["betas"])
    return Direction(exp_avg / denominator, denominator, step_size)
