"""LoRA-Pre: Adam's moments as products of two thin factors (Wang et al., arXiv 2602.24283)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from memopt.errors import unknown
from memopt.optimizers.arguments import Common, positive, whole
from memopt.optimizers.base import MemoptOptimizer
from memopt.seeds import generator
from memopt.states import Buffer, load, store
from memopt.subspaces import as_matrix, matrix_shape

FACTORS = ("old", "new")
INITIAL_SCALE = 0.02  # standard deviation of the right factors before the first step


class LoRAPre(MemoptOptimizer):
    """An exponential mean is a step of online regression on the gradient; here in rank r.

    With ``1 - g1 = sqrt(b1)``, ``1 - g2 = b2^(1/4)``, both updates from the factors before::

        mB <- (1-g1) mB + g1 G mA^T (mA mA^T + d I)^-1
        mA <- (1-g1) mA + g1 (mB^T mB + d I)^-1 mB^T G
        vB, vA likewise with g2 and |G|
        m = b1 mB mA + (1-b1) G             v = b2 (vB vA)^2 + (1-b2) G^2
        W <- (1 - lr wd) W - lr [m / (1-b1^t)] / [sqrt(v / (1-b2^t)) + eps]

    State per m x n weight: ``2 r (m + n)``. A step needs two m x n tensors for a moment.

    Args:
        params: see `MemoptOptimizer`.
        lr: learning rate.
        rank: r; at most the shorter side is used.
        factors: which factors stand in m and v: ``"old"``, those before the update (the literal
            exponential mean), or ``"new"``. The paper can be read both ways.
        damping: d of the r x r systems; without it the first step, where mB is zero, would have
            no solution. Singular values of the gradient below d leave no trace in the moments:
            a third party's 1e-4 is above most of a small language model's.
        betas: b1 and b2.
        eps: added to the root of the bias-corrected v, as in torch.
        storage: of the factors: ``"float32"``, ``"bfloat16"`` or ``"8bit"``.
        projection_seed: of the first right factors, N(0, 0.02^2), with the parameter's name; the
            left ones begin at zero.
        **common: see `memopt.optimizers.arguments.Common`; the decay precedes the update.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        rank: int = 16,
        factors: str = "old",
        damping: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        storage: str = "float32",
        projection_seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "rank": rank,
            "factors": factors,
            "damping": damping,
            "betas": betas,
            "eps": eps,
            "storage": storage,
            "projection_seed": projection_seed,
        }
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks rank, damping and the choice of factors beside the common arguments."""
        super().validate(group)
        whole(group, "rank", least=1)
        positive(group, "damping")
        if group["factors"] not in FACTORS:
            raise unknown("factors", group["factors"], FACTORS)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Left (m x r) and right (r x n) factor of both moments."""
        rows, columns = matrix_shape(shape)
        rank = min(group["rank"], rows, columns)
        return {
            f"{moment}_{side}": Buffer(factor)
            for moment in ("exp_avg", "exp_avg_sq")
            for side, factor in (("left", (rows, rank)), ("right", (rank, columns)))
        }

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The step of the class docstring."""
        step, (beta1, beta2) = state["step"], group["betas"]
        if step == 1:
            for moment in ("exp_avg", "exp_avg_sq"):
                key = (group["projection_seed"], self.name_of(param), moment)
                _draw(state, f"{moment}_right", *key)
        matrix = as_matrix(grad)
        second = _regress(matrix.abs(), state, "exp_avg_sq", beta2**0.25, group)
        first = _regress(matrix, state, "exp_avg", beta1**0.5, group)
        first.mul_(beta1).add_(matrix, alpha=1 - beta1)
        second.square_().mul_(beta2).addcmul_(matrix, matrix, value=1 - beta2)
        second.div_(1 - beta2**step).sqrt_().add_(group["eps"])
        return first.div_(second).mul_(group["lr"] / (1 - beta1**step)).view_as(param)


def _draw(state: dict[str, Any], factor: str, *key: str | int) -> None:
    """Initial values of a factor: N(0, 0.02^2), drawn on the CPU from the key."""
    live = load(state, factor)
    draw = torch.randn(live.shape, generator=generator(*key), device="cpu").mul_(INITIAL_SCALE)
    store(state, factor, draw.to(live))


def _regress(
    target: Tensor, state: dict[str, Any], moment: str, keep: float, group: dict[str, Any]
) -> Tensor:
    """One step of both factors towards ``target``; returns the product that enters the moment."""
    left, right = load(state, f"{moment}_left"), load(state, f"{moment}_right")
    product = left @ right if group["factors"] == "old" else None
    new_left = _solve(right @ right.T, right @ target.T, group["damping"]).T
    new_right = _solve(left.T @ left, left.T @ target, group["damping"])
    left.mul_(keep).add_(new_left, alpha=1 - keep)
    right.mul_(keep).add_(new_right, alpha=1 - keep)
    store(state, f"{moment}_left", left)
    store(state, f"{moment}_right", right)
    return left @ right if product is None else product


def _solve(gram: Tensor, values: Tensor, damping: float) -> Tensor:
    """``(gram + d I)^-1 values`` by Cholesky, without waiting for the device.

    Beside d, the diagonal gets as much as rounding takes from a nearly singular matrix.
    """
    rounding = torch.finfo(gram.dtype).eps * len(gram) * gram.diagonal().sum()
    gram.diagonal().add_(damping + rounding)
    return torch.cholesky_solve(values, torch.linalg.cholesky_ex(gram).L)
