"""Adam-mini's rule (Zhang et al., arXiv 2406.16793): one second moment for each block.

A block is a run of consecutive numbers, equally long in all of a tensor; how many there are is
told by the second moment's own shape. One block a row is one an output neuron of a linear weight
(out, in); one block a number is Adam.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memopt.rules import adam
from memopt.rules.base import Direction
from memopt.states import Buffer, load, store

limited = True
by_rows = True


def buffers(shape: tuple[int, ...]) -> dict[str, Buffer]:
    """First moment in full, one second moment a row."""
    return block_buffers(shape, (shape[0], *(1,) * (len(shape) - 1)))


def block_buffers(shape: tuple[int, ...], blocks: tuple[int, ...]) -> dict[str, Buffer]:
    """First moment in full, one second moment a block."""
    return {"exp_avg": Buffer(shape), "exp_avg_sq": Buffer(blocks, signed=False)}


def direction(coefficients: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """``m / (sqrt(v_row) + eps)``, times ``lr sqrt(1-b2^t) / (1-b1^t)``."""
    exp_avg, denominator = moments(coefficients, state, group["betas"], group["eps"])
    step_size = group["lr"] * adam.bias_correction(state["step"], group["betas"])
    return Direction(quotient(exp_avg, denominator), denominator, step_size)


def moments(
    grad: Tensor, state: dict[str, Any], betas: tuple[float, float], eps: float
) -> tuple[Tensor, Tensor]:
    """Updates both moments and returns m and, for each block, ``sqrt(v) + eps``.

    ``m <- b1 m + (1-b1) g``; ``v <- b2 v + (1-b2) mean of the block's g*g``.
    """
    exp_avg, exp_avg_sq = load(state, "exp_avg"), load(state, "exp_avg_sq")
    exp_avg.mul_(betas[0]).add_(grad, alpha=1 - betas[0])
    mean_square = in_blocks(grad.square(), exp_avg_sq.numel()).mean(1)
    exp_avg_sq.mul_(betas[1]).add_(mean_square.view_as(exp_avg_sq), alpha=1 - betas[1])
    store(state, "exp_avg", exp_avg)
    store(state, "exp_avg_sq", exp_avg_sq)
    return exp_avg, exp_avg_sq.sqrt().add_(eps)


def quotient(exp_avg: Tensor, denominator: Tensor) -> Tensor:
    """Each number of m over its block's denominator, in the shape of m."""
    blocks = in_blocks(exp_avg, denominator.numel())
    return (blocks / denominator.view(-1, 1)).view(exp_avg.shape)


def in_blocks(tensor: Tensor, count: int) -> Tensor:
    """The tensor as (blocks, numbers of a block); there may be none, on an empty shard."""
    return tensor.reshape(count, tensor.numel() // max(count, 1))
