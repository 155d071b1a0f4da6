"""Fira: GaLore, and the gradient that GaLore drops (Chen et al., arXiv 2410.01623)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.errors import unknown
from memopt.optimizers.projected import AdamOnR, Work
from memopt.optimizers.scaled import Scaled
from memopt.rules import scaling
from memopt.rules.limiter import norm_growth_divisor
from memopt.subspaces import as_matrix, projection

RESIDUALS = ("official", "paper")


class Fira(Scaled):
    """Adam's psi on ``R = G P``; the residual takes a step too, scaled per channel as R is by Adam.

    ``phi_j = ||psi_j|| / ||R_j||``; ``S = phi (G - R P^T)``, limited to grow by at most
    ``norm_growth_limit`` a step; ``W <- W - lr c_t (scale psi P^T + S)``. A channel j is a row of G
    for a right projection, a column for a left one. P as GaLore's, every T steps.

    State per m x n weight, reduced side m: GaLore's ``m r + 2 n r``, and one norm.

    Args:
        params: see `MemoptOptimizer`; groups written for the released code (``alpha``,
            ``update_proj_gap``, ``proj_type``) work as they are.
        lr: learning rate. The residual moves at ``lr``, the projected part at ``lr * scale``.
        rank: r; at most the shorter side is used.
        update_interval: T, steps between singular value decompositions.
        scale: alpha of the paper.
        residual: ``"official"``: ``G - scale R P^T``, as the released code has it: the share
            ``1 - scale`` of the projected gradient steps without momentum. ``"paper"``:
            ``G - R P^T``. The same for ``scale=1``.
        norm_growth_limit: gamma; None switches the limiter off.
        **common: see `memopt.optimizers.projected.AdamOnR`; the decay follows the update.
    """

    aliases = {**Scaled.aliases, "alpha": "scale"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        rank: int = 128,
        update_interval: int = 200,
        scale: float = 0.25,
        residual: str = "official",
        norm_growth_limit: float | None = 1.01,
        **common: Unpack[AdamOnR],
    ) -> None:
        # fmt: off
        defaults = {
            "lr": lr, "rank": rank, "update_interval": update_interval, "scale": scale,
            "residual": residual, "norm_growth_limit": norm_growth_limit,
        }
        # fmt: on
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the kind of residual beside the common arguments."""
        super().validate(group)
        if group["residual"] not in RESIDUALS:
            raise unknown("residual", group["residual"], RESIDUALS)

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The step of the class docstring."""
        matrix = as_matrix(grad)
        side, basis, coefficients, answer = self.sketched(matrix, Work(state, group, param))
        inside = group["scale"] if group["residual"] == "official" else 1.0
        residual = matrix - projection.back(coefficients * inside, basis, side)
        residual.mul_(scaling.scale(answer.value, coefficients, side))
        residual.div_(norm_growth_divisor(residual, state, group["norm_growth_limit"]))
        update = projection.back(answer.value * group["scale"], basis, side).add_(residual)
        return update.mul_(answer.step_size).view_as(param)

    def refresh(self, grad: Tensor, basis: Tensor, side: str, work: Work) -> Tensor:
        """The leading singular vectors of the current gradient."""
        return projection.svd_basis(grad, basis.shape[1], side)
