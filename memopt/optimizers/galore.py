"""GaLore: Adam on the gradient's leading singular subspace (Zhao et al., arXiv 2403.03507)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.optimizers.projected import Projected, ProjectedCommon, Work
from memopt.subspaces import projection


class GaLore(Projected):
    """Every T steps ``P`` = first r singular vectors of one side of G; Adam on ``R = G P``.

    The moments are not rotated when P changes, as in the paper and the official code.

    Args:
        params: see `MemoptOptimizer`; treated groups hold weights of two or more dimensions
            (more than two are flattened to (out, rest)).
        lr: learning rate; treated weights move at ``lr * scale``.
        rank: r; at most the shorter side is used.
        update_interval: T, steps between singular value decompositions (``update_proj_gap`` is an
            accepted alias in groups).
        scale: alpha of the paper.
        **common: see `memopt.optimizers.projected.ProjectedCommon`; the decay follows the update.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        rank: int = 128,
        update_interval: int = 200,
        scale: float = 0.25,
        **common: Unpack[ProjectedCommon],
    ) -> None:
        defaults = {"lr": lr, "rank": rank, "update_interval": update_interval, "scale": scale}
        super().__init__(params, defaults, **common)

    def row_block(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Between refreshes, where the rows are kept."""
        return self.projected_rows(param, state, group)

    def refresh(self, grad: Tensor, basis: Tensor, side: str, work: Work) -> Tensor:
        """The leading singular vectors of the current gradient."""
        return projection.svd_basis(grad, basis.shape[1], side)
