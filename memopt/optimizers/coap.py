"""COAP: correlation-aware gradient projection (Xiao et al., CVPR 2025, arXiv 2412.00071)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from memopt.errors import UnsupportedCombination, unknown
from memopt.optimizers import coap_tucker
from memopt.optimizers.arguments import positive, whole
from memopt.optimizers.projected import Projected, ProjectedCommon, Work
from memopt.rules import Direction
from memopt.seeds import generator
from memopt.states import Buffer, load
from memopt.subspaces import correlation, matrix_shape, tucker


class COAP(Projected):
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
        conv_rank_ratio: c of 4-D weights, whose two channel modes are each reduced by ``sqrt(c)``
            (Tucker-2); None means ``rank_ratio``, or ``rank`` for both modes.
        update_interval: T_u in steps.
        recalibrate_every: lambda, in update intervals.
        scale: factor on the update of treated weights.
        correlation_update: ``"official"`` (Eq. 5 as the code has it), ``"normalised"`` (gradient
            and moment divided by their RMS) or ``"off"``.
        rotate_moments: carry the moments into a new basis (``restore_state`` of the official code).
        projection_seed: seed of the first sketch, together with the parameter's name.
        **common: see `memopt.optimizers.projected.ProjectedCommon`; the decay follows the update.
    """

    suitable = "two or more dimensions and a shorter side above rank"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        rank: int | None = None,
        rank_ratio: float | None = None,
        conv_rank_ratio: float | None = None,
        update_interval: int = 32,
        recalibrate_every: int = 5,
        scale: float = 1.0,
        correlation_update: str = "official",
        rotate_moments: bool = False,
        projection_seed: int = 3407,
        **common: Unpack[ProjectedCommon],
    ) -> None:
        # fmt: off
        defaults = {
            "lr": lr, "rank": rank, "rank_ratio": rank_ratio, "conv_rank_ratio": conv_rank_ratio,
            "update_interval": update_interval, "recalibrate_every": recalibrate_every,
            "scale": scale, "correlation_update": correlation_update,
            "rotate_moments": rotate_moments, "projection_seed": projection_seed,
        }
        # fmt: on
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks COAP's own arguments beside the common ones."""
        super().validate(group)
        whole(group, "recalibrate_every", least=1)
        one_given = (group["rank"] is None) != (group["rank_ratio"] is None)
        if group["treated"] is not False and not one_given:
            raise ValueError("give exactly one of rank and rank_ratio (COAP)")
        for key in ("rank_ratio", "conv_rank_ratio"):
            if group[key] is not None:
                positive(group, key)
        if group["rotate_moments"] and group["rule"] != "adam":
            raise UnsupportedCombination(
                f"rotate_moments needs both of Adam's moments; rule={group['rule']!r} keeps no "
                "full second moment. Use rule='adam' or rotate_moments=False."
            )
        if group["correlation_update"] not in correlation.CORRELATION_UPDATES:
            known = correlation.CORRELATION_UPDATES
            raise unknown("correlation_update", group["correlation_update"], known)

    def rank_of(self, shape: tuple[int, int], group: dict[str, Any]) -> int:
        """``rank``, or ``max(floor(min(m, n) / rank_ratio), 1)``."""
        if group["rank_ratio"] is None:
            return super().rank_of(shape, group)
        return min(max(int(min(shape) / group["rank_ratio"]), 1), *shape)

    def treats(self, param: Tensor, group: dict[str, Any]) -> bool:
        """Matrices with a shorter side above ``rank`` (all under ``rank_ratio``); large kernels."""
        if not super().treats(param, group):
            return False
        if param.ndim == 4:
            return param.numel() > tucker.PLAIN_ELEMENTS
        return group["rank"] is None or min(matrix_shape(tuple(param.shape))) > group["rank"]

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Basis and moments of a matrix; two bases and the moments of the core for a 4-D weight."""
        if len(shape) == 4:
            return coap_tucker.buffers(shape, group)
        return super().buffers(shape, group)

    def row_block(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any] | None:
        """As for any projection; the Tucker products of a kernel need all of it."""
        return None if param.ndim == 4 else self.projected_rows(param, state, group)

    def coefficients(self, grad: Tensor, work: Work, *, refresh: bool) -> Tensor:
        """R of a matrix; the Tucker-2 core of a 4-D gradient."""
        state, group, param = work
        if param.ndim != 4:
            return super().coefficients(grad, work, refresh=refresh)
        if refresh and self.due(state, group):
            self.require_finite(grad, param)
            coap_tucker.refresh(grad, state, group)
        return coap_tucker.project(grad, state, group)

    def expanded(self, answer: Direction, work: Work) -> Tensor:
        """What is subtracted from the weight."""
        if work.param.ndim != 4:
            return super().expanded(answer, work)
        return coap_tucker.expanded(answer, *work)

    def refresh(self, grad: Tensor, basis: Tensor, side: str, work: Work) -> Tensor:
        """Sketch at the start; then Eq. 5, or Eq. 6 at every ``recalibrate_every``-th refresh."""
        state, group, param = work
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
            coap_tucker.turn_moments(state, {0 if transposed else 1: new.T @ basis})
        return new
