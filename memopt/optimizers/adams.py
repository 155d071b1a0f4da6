"""AdamS: the momentum normalises itself (Zhang, Wang & Chen, EMNLP 2025, arXiv 2505.16363)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from memopt.optimizers.uniform import Stored, StoredCommon
from memopt.states import Buffer, load, store


class AdamS(Stored):
    """``nu = b2 m*m + (1-b2) g*g`` with the old m; ``m <- b1 m + (1-b1) g``; a step m / sqrt(nu).

    nu is never kept. Not the AdamS of Xie et al. (stable weight decay, arXiv 2011.11152).

    State per weight: one moment.

    Args:
        params: parameters, named parameters, or groups; every parameter is treated.
        lr: learning rate, as AdamW's.
        betas: (0.9, 0.95) belongs to the method: at t = 1 the update is
            ``(1-b1) / sqrt(1-b2) sign(g)``: 0.447, but 3.16 with b2 = 0.999.
        eps: added to sqrt(nu).
        bias_correction: divide the old and the new m by ``1 - b1^t``, as the official code does
            (4.47 sign(g) at t = 1) and the paper does not.
        **common: see `memopt.optimizers.uniform.StoredCommon`.
    """

    elementwise = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 3e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        bias_correction: bool = False,
        **common: Unpack[StoredCommon],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "bias_correction": bias_correction}
        super().__init__(params, defaults, **common)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The momentum."""
        return {"exp_avg": Buffer(shape)}

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Between micro-batches a second buffer would have to hold nu."""
        return (
            "its denominator needs the old momentum and the gradient of the whole mini-batch at "
            "once, and the state has room for one of them"
        )

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The denominator from the old momentum, which then takes the gradient."""
        beta1, beta2 = group["betas"]
        correction = 1 - beta1 ** state["step"] if group["bias_correction"] else 1.0
        exp_avg = load(state, "exp_avg")
        nu = exp_avg.square().mul_(beta2 / correction**2).addcmul_(grad, grad, value=1 - beta2)
        denominator = nu.sqrt_().add_(group["eps"])
        exp_avg.lerp_(grad, 1 - beta1)
        store(state, "exp_avg", exp_avg)
        return torch.div(exp_avg, denominator, out=denominator).mul_(group["lr"] / correction)
