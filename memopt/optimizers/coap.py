"""COAP: correlation-aware gradient projection (Xiao et al., CVPR 2025, arXiv 2412.00071)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from memopt.errors import unknown
from memopt.optimizers.base import Common, positive, whole
from memopt.optimizers.projected import ProjectedAdam
from memopt.seeds import generator
from memopt.states import load, store
from memopt.subspaces import correlation, matrix_shape


class COAP(ProjectedAdam):
    """Adam on ``R = G P``, where P follows the gradient cheaply.

    At step 1, P comes from a Gaussian sketch by QR and a thin SVD. Every ``update_interval`` (T_u)
    steps P takes one gradient step on the paper's Eq. 5; every ``recalibrate_every`` (lambda)-th of
    these is instead a recalibration, Eq. 6: ``QR(G P)``, thin SVD of ``Q^T G``.

    Args:
        params: see `MemoptOptimizer`. A matrix whose shorter side is at most ``rank`` gets plain
            Adam, as in the official code.
        lr: learning rate; treated weights move at ``lr * scale``.
        rank: r, or
        rank_ratio: c of ``r = max(floor(min(m, n) / c), 1)``; exactly one of the two.
        update_interval: T_u in steps.
        recalibrate_every: lambda, in update intervals.
        scale: factor on the update of treated weights.
        correlation_update: ``"official"`` (Eq. 5 as the code has it), ``"normalised"`` (gradient
            and moment divided by their RMS) or ``"off"``.
        rotate_moments: carry the moments into a new basis (``restore_state`` of the official code).
        projection_seed: seed of the first sketch, together with the parameter's name.
        side: ``"std"`` reduces the shorter side; ``"left"``, ``"right"``, ``"reverse_std"``.
        betas, eps: Adam's; defaults are the official code's.
        storage: ``"float32"``, ``"bfloat16"`` or ``"8bit"`` moments.
        **common: see `memopt.optimizers.base.Common`; the decay follows the update.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        rank: int | None = None,
        rank_ratio: float | None = None,
        update_interval: int = 32,
        recalibrate_every: int = 5,
        scale: float = 1.0,
        correlation_update: str = "official",
        rotate_moments: bool = False,
        projection_seed: int = 3407,
        side: str = "std",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        storage: str = "float32",
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "rank": rank,
            "rank_ratio": rank_ratio,
            "update_interval": update_interval,
            "recalibrate_every": recalibrate_every,
            "scale": scale,
            "correlation_update": correlation_update,
            "rotate_moments": rotate_moments,
            "projection_seed": projection_seed,
            "side": side,
            "betas": betas,
            "eps": eps,
            "storage": storage,
        }
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks COAP's own arguments beside the common ones."""
        super().validate(group)
        whole(group, "recalibrate_every", least=1)
        if (group["rank"] is None) == (group["rank_ratio"] is None):
            raise ValueError("give exactly one of rank and rank_ratio (COAP)")
        if group["rank_ratio"] is not None:
            positive(group, "rank_ratio")
        if group["correlation_update"] not in correlation.CORRELATION_UPDATES:
            known = correlation.CORRELATION_UPDATES
            raise unknown("correlation_update", group["correlation_update"], known)

    def rank_of(self, shape: tuple[int, int], group: dict[str, Any]) -> int:
        """``rank``, or ``max(floor(min(m, n) / rank_ratio), 1)``."""
        if group["rank_ratio"] is None:
            return super().rank_of(shape, group)
        return min(max(int(min(shape) / group["rank_ratio"]), 1), *shape)

    def treats(self, param: Tensor, group: dict[str, Any]) -> bool:
        """Matrices whose shorter side exceeds ``rank``; all matrices under ``rank_ratio``."""
        if not super().treats(param, group):
            return False
        return group["rank"] is None or min(matrix_shape(tuple(param.shape))) > group["rank"]

    def refresh(
        self,
        grad: Tensor,
        basis: Tensor,
        side: str,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
    ) -> Tensor:
        """Sketch at the start; then Eq. 5, or Eq. 6 at every ``recalibrate_every``-th refresh."""
        transposed = side == "left"
        grad = grad.T if transposed else grad
        refreshes = (state["step"] - 1) // group["update_interval"]
        if refreshes == 0:
            seed = generator(group["projection_seed"], self.name_of(param), 0)
            sketch = torch.randn(basis.shape, generator=seed, dtype=basis.dtype)
            return correlation.sketch_basis(grad, sketch.to(basis.device))
        if refreshes % group["recalibrate_every"] == 0:
            new = correlation.sketch_basis(grad, basis)
        else:
            exp_avg = load(state, "exp_avg")
            new = correlation.correlation_step(
                grad,
                basis,
                exp_avg.T if transposed else exp_avg,
                transposed=transposed,
                variant=group["correlation_update"],
            )
        if group["rotate_moments"]:
            rotate_moments(state, basis.T @ new, transposed=transposed)
        return new


def rotate_moments(state: dict[str, Any], change: Tensor, *, transposed: bool) -> None:
    """``M <- M change``, ``V <- (sqrt(V) change)^2`` with ``change = P_old^T P_new``, (r, r)."""
    exp_avg, root = load(state, "exp_avg"), load(state, "exp_avg_sq").sqrt()
    turned = (
        (change.T @ exp_avg, change.T @ root) if transposed else (exp_avg @ change, root @ change)
    )
    store(state, "exp_avg", turned[0])
    store(state, "exp_avg_sq", turned[1].square())
