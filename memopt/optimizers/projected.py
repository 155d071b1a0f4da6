"""What GaLore and COAP share: a rule on a projection of the gradient to one low-rank basis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from memopt.errors import NonFiniteGradientError, unknown
from memopt.optimizers.base import Common, MemoptOptimizer, positive, whole
from memopt.rules import rule
from memopt.states import Buffer, load, store
from memopt.subspaces import as_matrix, matrix_shape, projection


class Projected(MemoptOptimizer):
    """``R = G P``; the rule's moments on R; ``W <- W - lr c_t scale (m/(sqrt v + eps)) P^T``.

    State per m x n weight, reduced side n, kept side m: moments ``2 m r`` (rule adam) and
    basis ``n r``.
    """

    decay_last = True
    aliases = {"update_proj_gap": "update_interval", "proj_type": "side"}

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], **common: Unpack[Common]
    ) -> None:
        super().__init__(_marked_by_rank(params), defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks rank, interval, side and scale beside the common arguments."""
        super().validate(group)
        whole(group, "update_interval", least=1)
        positive(group, "scale")
        if group["rank"] is not None or "rank_ratio" not in group:
            whole(group, "rank", least=1)
        rule(group["rule"])
        if group["side"] not in projection.SIDES:
            raise unknown("side", group["side"], projection.SIDES)

    def rank_of(self, shape: tuple[int, int], group: dict[str, Any]) -> int:
        """Rank used for a matrix: the group's, at most its shorter side."""
        return min(group["rank"], *shape)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The basis and the rule's moments."""
        matrix = matrix_shape(shape)
        basis, coefficients = projection.shapes(matrix, group["side"], self.rank_of(matrix, group))
        return {
            "projection": Buffer(basis, kind="projection"),
            **rule(group["rule"]).buffers(coefficients),
        }

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """Refresh the basis if due, project, apply the rule, project back."""
        matrix = as_matrix(grad)
        side = projection.resolve_side(matrix_shape(tuple(grad.shape)), group["side"])
        basis = load(state, "projection")
        if self.due(state, group):
            self._require_finite(matrix, param)
            basis = self.refresh(matrix, basis, side, state, group, param)
            store(state, "projection", basis)
            basis = load(state, "projection")  # as it is stored: rounded under bfloat16
        coefficients = projection.project(matrix, basis, side)
        answer = rule(group["rule"]).direction(coefficients, state, group)
        update = projection.back(answer.value, basis, side)
        update = answer.finish(update) if answer.finish else update
        return update.mul_(answer.step_size * group["scale"]).view_as(param)

    def due(self, state: dict[str, Any], group: dict[str, Any]) -> bool:
        """Whether the basis is refreshed: at steps 1, 1 + T, 1 + 2T, ..."""
        return bool((state["step"] - 1) % group["update_interval"] == 0)

    def _require_finite(self, grad: Tensor, param: Tensor) -> None:
        """A decomposition of NaN fails deep inside LAPACK; under nonfinite="ignore" say it here."""
        if not bool(torch.isfinite(grad).all()):
            raise NonFiniteGradientError(
                f"the gradient of {self.name_of(param)!r} is not finite at a refresh of its basis."
            )

    @abstractmethod
    def refresh(
        self,
        grad: Tensor,
        basis: Tensor,
        side: str,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
    ) -> Tensor:
        """The new basis, orthonormal columns, in the shape of the old one."""


def _marked_by_rank(params: Iterable[Any]) -> list[Any]:
    """GaLore's convention: where some groups carry ``rank``, the groups without it are plain."""
    groups = list(params)
    if not any(isinstance(group, dict) and "rank" in group for group in groups):
        return groups
    return [{"treated": "rank" in group, **group} for group in groups]
