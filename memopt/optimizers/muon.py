"""Muon: momentum, orthogonalised by Newton-Schulz steps (Jordan et al., 2024)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from memopt.errors import unknown
from memopt.optimizers.arguments import Common, positive
from memopt.optimizers.base import MemoptOptimizer
from memopt.rules import muon
from memopt.states import Buffer
from memopt.subspaces import as_matrix

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16}


class Muon(MemoptOptimizer):
    """The momentum of each matrix, replaced by its nearest orthogonal matrix.

    ``B <- mu B + (1-mu) G``; ``X = mu B + (1-mu) G`` (Nesterov) or B; five Newton-Schulz steps
    take all singular values of X to about 1 (0.7 to 1.2): ``O``. Then
    ``W <- W (1 - lr weight_decay) - lr f O`` with f of the shape, see ``adjust_lr_fn``.

    Embeddings, output head, norms and biases get plain Adam, with the rate ``lr * adam_scale``:
    one schedule drives both. For a rate of their own, give them a group with
    ``{"treated": False, "lr": ..., "adam_scale": 1.0}``.

    State per m x n weight: one momentum.

    Args:
        params: see `MemoptOptimizer` (best: `memopt.param_groups`: hidden matrices are treated);
            weights of more than two dimensions are flattened to (out, rest).
        lr: learning rate of the treated weights.
        momentum: mu, in [0, 1).
        nesterov: mixes the gradient into the momentum once more.
        adjust_lr_fn: f, as in ``torch.optim.Muon``: ``"original"``: ``max(1, m / n)^0.5``;
            ``"match_rms_adamw"``: ``0.2 max(m, n)^0.5`` (arXiv 2502.16982), with which AdamW's
            learning rate can stay.
        precision: of the Newton-Schulz steps: ``"float32"`` (float64 for float64 weights), or
            ``"bfloat16"`` as the reference: faster where the device has units for it.
        adam_scale: rate of the plain weights over ``lr``; the default makes it 3e-4 at lr 0.02.
        betas, eps: of plain Adam; defaults are the reference's.
        storage: ``"float32"``, ``"bfloat16"`` or ``"8bit"`` momentum.
        **common: see `memopt.optimizers.arguments.Common`; the decay precedes the update, at the
            weight's own rate.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        adjust_lr_fn: str = "original",
        precision: str = "float32",
        adam_scale: float = 0.015,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-10,
        storage: str = "float32",
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "adjust_lr_fn": adjust_lr_fn,
            "precision": precision,
            "adam_scale": adam_scale,
            "betas": betas,
            "eps": eps,
            "storage": storage,
        }
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks Muon's own arguments beside the common ones."""
        super().validate(group)
        positive(group, "momentum", zero=True)
        positive(group, "adam_scale", zero=True)
        if group["momentum"] >= 1:
            raise ValueError(f"momentum must be in [0, 1), got {group['momentum']!r}")
        for key, known in (("adjust_lr_fn", muon.ADJUSTMENTS), ("precision", PRECISIONS)):
            if group[key] not in known:
                raise unknown(key, group[key], known)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The momentum in the shape of the weight."""
        return muon.buffers(shape)

    def step_parameter(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """As the base's; weights that Muon does not treat move, and decay, at Adam's rate."""
        if not self.treats(param, group):
            group = {**group, "lr": group["lr"] * group["adam_scale"]}
        super().step_parameter(param, grad, group)

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """``lr f NewtonSchulz(X)``."""
        mixed = muon.momentum(grad, state, group["momentum"], nesterov=group["nesterov"])
        dtype = PRECISIONS[group["precision"]]
        update = muon.orthogonalise(as_matrix(mixed), group["adjust_lr_fn"], dtype)
        return update.mul_(group["lr"]).reshape(param.shape)
