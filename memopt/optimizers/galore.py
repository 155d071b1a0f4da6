"""GaLore: Adam on the gradient's leading singular subspace (Zhao et al., arXiv 2403.03507)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.optimizers.base import Common
from memopt.optimizers.projected import Projected
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
        side: ``"std"`` reduces the shorter side, ``"reverse_std"`` the longer, or ``"left"``,
            ``"right"``.
        rule: ``"adam"``, ``"adafactor"``, ``"adam_mini"`` or ``"muon"``, on R.
        betas, eps: Adam's; defaults are the official code's.
        storage: ``"float32"``, ``"bfloat16"`` or ``"8bit"`` moments.
        **common: see `memopt.optimizers.base.Common`; the decay follows the update.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        rank: int = 128,
        update_interval: int = 200,
        scale: float = 0.25,
        side: str = "std",
        rule: str = "adam",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        storage: str = "float32",
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "rank": rank,
            "update_interval": update_interval,
            "scale": scale,
            "side": side,
            "rule": rule,
            "betas": betas,
            "eps": eps,
            "storage": storage,
        }
        super().__init__(params, defaults, **common)

    def refresh(
        self,
        grad: Tensor,
        basis: Tensor,
        side: str,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
    ) -> Tensor:
        """The leading singular vectors of the current gradient."""
        return projection.svd_basis(grad, basis.shape[1], side)
