"""AdamA: Adam that accumulates its moments instead of the gradient (Zhang et al., 2305.19982)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Unpack

from torch import Tensor

from memopt.backward import accumulate_in_backward
from memopt.errors import unknown
from memopt.optimizers.arguments import Common, positive
from memopt.optimizers.uniform import Uniform
from memopt.rules import adam
from memopt.states import Buffer


class AdamA(Uniform):
    """Each micro-gradient ``g_i`` (of the loss divided by N) enters m and v, and is freed.

    ``m_t = b1 m_{t-1} + (1-b1) sum_i g_i`` and ``v_t = b2 v_{t-1} + (1-b2) sum_i g_i*g_i``;
    ``step()`` then moves the weights as Adam does, once per mini-batch t. Adam with gradient
    accumulation has ``(sum_i g_i)^2`` in v: AdamA's v lies between 1/N of it and all of it.

    With one micro-batch this is ``torch.optim.AdamW(foreach=False)``, bit for bit.

    State per weight: two moments, in float32 (float64 for float64 weights).

    Args:
        params: parameters, named parameters, or groups (best: `memopt.param_groups`).
        lr: learning rate, read in ``step()``.
        betas, eps: Adam's.
        v_scale: 1 for AdamA; ``"N"`` for the mean of squared micro-gradients, the v of batch size
            invariant Adam (arXiv 2402.18824).
        micro_batches: N. Needed for ``v_scale="N"``, otherwise counted.
        **common: see `memopt.optimizers.arguments.Common`; ``nonfinite`` applies to each
            micro-gradient as it comes, the decay once per mini-batch.
    """

    elementwise = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        v_scale: Literal[1, "N"] = 1,
        micro_batches: int | None = None,
        **common: Unpack[Common],
    ) -> None:
        if v_scale not in (1, "N"):
            raise unknown("v_scale", str(v_scale), ("1", "N"))
        if v_scale == "N" and micro_batches is None:
            raise ValueError("v_scale='N' needs micro_batches, the number N of backward passes")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "square_weight": float(micro_batches) if v_scale == "N" and micro_batches else 1.0,
        }
        super().__init__(params, defaults, **common)
        accumulate_in_backward(self, micro_batches)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the weight of the squares beside the common arguments."""
        super().validate(group)
        positive(group, "square_weight")

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Both moments in the shape of the weight."""
        return adam.buffers(shape)

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Nothing speaks against it."""
        return None

    def accumulate(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
        *,
        first: bool,
    ) -> None:
        """One micro-batch; the first one of a mini-batch decays both moments."""
        fold(grad, state, group["betas"], first=first, square_weight=group["square_weight"])

    def finish(self, state: dict[str, Any], group: dict[str, Any], param: Tensor) -> Tensor:
        """``lr mhat / (sqrt(vhat) + eps)``; t counts mini-batches."""
        return adam.corrected(state["exp_avg"], state["exp_avg_sq"], state["step"], group)

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The whole step on one gradient, after ``timing.remove()``: AdamW."""
        self.accumulate(grad, state, group, param, first=True)
        return self.finish(state, group, param)


def fold(
    grad: Tensor,
    state: dict[str, Any],
    betas: tuple[float, float],
    *,
    first: bool,
    square_weight: float = 1.0,
) -> None:
    """Adds one micro-gradient to both moments, with the rounding of ``torch.optim.AdamW``."""
    exp_avg, exp_avg_sq = state["exp_avg"], state["exp_avg_sq"]
    beta1, beta2 = betas
    if first:
        exp_avg.lerp_(grad, 1 - beta1)  # b1 m + (1-b1) g, with torch's rounding
        exp_avg_sq.mul_(beta2)
    else:
        exp_avg.add_(grad, alpha=1 - beta1)
    exp_avg_sq.addcmul_(grad, grad, value=(1 - beta2) * square_weight)
