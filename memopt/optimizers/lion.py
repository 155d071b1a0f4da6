"""Lion: the sign of an interpolated momentum (Chen et al., arXiv 2302.06675)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.optimizers.uniform import Stored, StoredCommon
from memopt.states import Buffer, load, store


class Lion(Stored):
    """``theta <- theta - lr (sign(b1 m + (1-b1) g) + decay theta)``; ``m <- b2 m + (1-b2) g``.

    Every element moves by ``lr``. Algorithm 2 of the paper.

    State per weight: one moment.

    Args:
        params: parameters, named parameters, or groups; every parameter is treated.
        lr: learning rate, 3 to 10 times smaller than AdamW's (and the decay as much larger).
        betas: of the direction and of the momentum; (0.95, 0.98) is the paper's for stability.
        **common: see `memopt.optimizers.uniform.StoredCommon`.
    """

    elementwise = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        **common: Unpack[StoredCommon],
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas}, **common)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The momentum."""
        return {"exp_avg": Buffer(shape)}

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Direction and momentum mix m and g by b1 and by b2; one buffer holds one mixture."""
        return (
            "direction and next momentum are two different mixtures of the momentum and the "
            "gradient of the whole mini-batch, and the state has room for one"
        )

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The direction from the old momentum, which then takes the gradient."""
        beta1, beta2 = group["betas"]
        exp_avg = load(state, "exp_avg")
        direction = exp_avg.lerp(grad, 1 - beta1).sign_()
        store(state, "exp_avg", exp_avg.lerp_(grad, 1 - beta2))
        return direction.mul_(group["lr"])
