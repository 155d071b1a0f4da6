"""What projected methods share: a rule on a projection of the gradient to one low-rank basis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, NamedTuple, Unpack

import torch
from torch import Tensor

from memopt.errors import NonFiniteGradientError, unknown
from memopt.optimizers.arguments import COMMON_DEFAULTS, Common, positive, whole
from memopt.optimizers.base import MemoptOptimizer
from memopt.rules import Direction, Rule, accumulation, rule
from memopt.states import Buffer, load, store
from memopt.subspaces import as_matrix, matrix_shape, projection


class AdamOnR(Common, total=False):
    """Arguments that methods with Adam on a projected gradient R take beside their own.

    Attributes:
        side: ``"std"`` (default) reduces the shorter side, ``"reverse_std"`` the longer; or
            ``"left"``, ``"right"``.
        betas: Adam's; default (0.9, 0.999).
        eps: Adam's; default 1e-6, as in the official codes.
        storage: of the moments: ``"float32"`` (default), ``"bfloat16"`` or ``"8bit"``.
    """

    side: str
    betas: tuple[float, float]
    eps: float
    storage: str


class ProjectedCommon(AdamOnR, total=False):
    """Arguments that projected methods take beside their own.

    Attributes:
        rule: ``"adam"`` (default), ``"adafactor"``, ``"adam_mini"`` or ``"muon"``, on R; Muon's
            momentum is ``betas[0]``.
    """

    rule: str


class Work(NamedTuple):
    """What a refresh may look at: the parameter's state, its hyperparameters, the weight."""

    state: dict[str, Any]
    group: dict[str, Any]
    param: Tensor


class Projected(MemoptOptimizer):
    """``R = G P``; the rule's moments on R; ``W <- W - lr c_t scale (m/(sqrt v + eps)) P^T``.

    State per m x n weight, reduced side n, kept side m: moments ``2 m r`` (rule adam) and
    basis ``n r``.
    """

    decay_last = True
    aliases = {"update_proj_gap": "update_interval", "proj_type": "side"}

    common_defaults = {
        **COMMON_DEFAULTS,
        "side": "std",
        "rule": "adam",
        "betas": (0.9, 0.999),
        "eps": 1e-6,
        "storage": "float32",
    }

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], **common: Unpack[ProjectedCommon]
    ) -> None:
        super().__init__(_marked_by_rank(params), defaults, **common)  # type: ignore[misc]

    def validate(self, group: dict[str, Any]) -> None:
        """Checks rank, interval, side and scale beside the common arguments."""
        super().validate(group)
        whole(group, "update_interval", least=1)
        positive(group, "scale")
        if group["rank"] is not None or "rank_ratio" not in group:
            whole(group, "rank", least=1)
        self.rule_of(group)
        if group["side"] not in projection.SIDES:
            raise unknown("side", group["side"], projection.SIDES)

    def rule_of(self, group: dict[str, Any]) -> Rule:
        """The rule on R; Adam's where the method leaves no choice."""
        return rule(group.get("rule", "adam"))

    def rank_of(self, shape: tuple[int, int], group: dict[str, Any]) -> int:
        """Rank used for a matrix: the group's, at most its shorter side."""
        return min(group["rank"], *shape)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The basis and the rule's moments."""
        matrix = matrix_shape(shape)
        basis, coefficients = projection.shapes(matrix, group["side"], self.rank_of(matrix, group))
        return {
            "projection": Buffer(basis, kind="projection"),
            **self.rule_of(group).buffers(coefficients),
        }

    def projected_rows(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any] | None:
        """`row_block` of methods that do no more than `update`: ``G P`` needs no other rows.

        A refresh needs them, and so does the reduction of rows.
        """
        side = self._side(Work(state, group, param))
        alone = side == "right" and self.rule_of(group).by_rows and not self.due(state, group)
        return {**group, "side": "right"} if alone else None

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """Refresh the basis if due, project, apply the rule, project back."""
        coefficients = self.coefficients(grad, Work(state, group, param), refresh=True)
        answer = self.rule_of(group).direction(coefficients, state, group)
        return self.expanded(answer, Work(state, group, param))

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Nothing: the projection is linear. A method that also needs G itself says so here."""
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
        """``R_i = G_i P`` enters the state; a refresh that is due takes the first G_i alone."""
        coefficients = self.coefficients(grad, Work(state, group, param), refresh=first)
        accumulation.fold(coefficients, state, group, first=first)

    def finish(self, state: dict[str, Any], group: dict[str, Any], param: Tensor) -> Tensor:
        """The step from the micro-gradients' coefficients, back through the basis they had."""
        return self.expanded(accumulation.settled(state, group), Work(state, group, param))

    def coefficients(self, grad: Tensor, work: Work, *, refresh: bool) -> Tensor:
        """R of a gradient; before that, with ``refresh`` and where due, a new basis from it."""
        matrix, side = as_matrix(grad), self._side(work)
        basis = self.basis(matrix, side, work) if refresh else load(work.state, "projection")
        return projection.project(matrix, basis, side)

    def expanded(self, answer: Direction, work: Work) -> Tensor:
        """What is subtracted from the weight: the rule's answer, back from the basis."""
        update = projection.back(answer.value, load(work.state, "projection"), self._side(work))
        update = answer.finish(update) if answer.finish else update
        return update.mul_(answer.step_size * work.group["scale"]).view_as(work.param)

    def basis(self, grad: Tensor, side: str, work: Work) -> Tensor:
        """The basis of this step, refreshed first where that is due."""
        basis = load(work.state, "projection")
        if not self.due(work.state, work.group):
            return basis
        self.require_finite(grad, work.param)
        store(work.state, "projection", self.refresh(grad, basis, side, work))
        return load(work.state, "projection")  # as it is stored: rounded under bfloat16

    def _side(self, work: Work) -> str:
        return projection.resolve_side(matrix_shape(tuple(work.param.shape)), work.group["side"])

    def due(self, state: dict[str, Any], group: dict[str, Any]) -> bool:
        """Whether the basis is refreshed: at steps 1, 1 + T, 1 + 2T, ..."""
        return bool((state["step"] - 1) % group["update_interval"] == 0)

    def require_finite(self, grad: Tensor, param: Tensor) -> None:
        """A decomposition of NaN fails deep inside LAPACK; under nonfinite="ignore" say it here."""
        if not bool(torch.isfinite(grad).all()):
            raise NonFiniteGradientError(
                f"the gradient of {self.name_of(param)!r} is not finite at a refresh of its basis."
            )

    @abstractmethod
    def refresh(self, grad: Tensor, basis: Tensor, side: str, work: Work) -> Tensor:
        """The new basis, orthonormal columns, in the shape of the old one."""


def _marked_by_rank(params: Iterable[Any]) -> list[Any]:
    """GaLore's convention: where some groups carry ``rank``, the groups without it are plain."""
    groups = list(params)
    if not any(isinstance(group, dict) and "rank" in group for group in groups):
        return groups
    return [{"treated": "rank" in group, **group} for group in groups]
