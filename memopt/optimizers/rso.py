"""RSO: Adam in one random subspace after another (Chen et al., arXiv 2502.07222)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.errors import unknown
from memopt.optimizers.arguments import Common, positive, whole
from memopt.optimizers.base import MemoptOptimizer
from memopt.rules import adam
from memopt.states import Buffer, load, store
from memopt.subspaces import as_matrix, matrix_shape, projection, random


class RSO(MemoptOptimizer):
    """Outer step k: a random P; inner steps: Adam on B in ``W_k + B P^T``; then ``W_{k+1}``.

    The weights hold ``W_k + B P^T`` all the time, so that one inner step is ``R = G P`` (the
    gradient of B) and ``W <- W - lr c_s [m / (sqrt(v) + eps)] P^T``, with s = 1 ... T the inner
    step, from which Adam's bias correction counts. Every T steps P is new and m, v are zero.

    State per m x n weight (m outputs): ``2 m r``. P is drawn again from its seed at every step,
    unless it is kept (``n r`` more). B itself is kept for the proximal term only (``m r`` more).

    Args:
        params: see `MemoptOptimizer`.
        lr: learning rate.
        rank: r; at most the side that is reduced is used.
        update_interval: T, inner steps of one outer step.
        proximal: ``1 / (2 eta)``, the weight of ``||B||^2`` in the inner objective; default 0.
        distribution: of P: ``"gaussian"``, N(0, 1/r), the paper's practice; or ``"haar"``,
            orthogonal with ``P^T P = (n/r) I``, its theory.
        side: ``"right"``: P acts on a layer's inputs, as in the paper; ``"left"``, or ``"std"``
            and ``"reverse_std"``, the shorter and the longer side.
        keep_projection: keep P during an outer step: no draw a step.
        betas: Adam's.
        eps: Adam's.
        storage: of m, v, B and a kept P: ``"float32"``, ``"bfloat16"`` or ``"8bit"``.
        projection_seed: seed of P, with the parameter's name and k.
        **common: see `memopt.optimizers.arguments.Common`; the decay precedes the update.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        rank: int = 128,
        update_interval: int = 200,
        proximal: float = 0.0,
        distribution: str = "gaussian",
        side: str = "right",
        keep_projection: bool = False,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        storage: str = "float32",
        projection_seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "rank": rank,
            "update_interval": update_interval,
            "proximal": proximal,
            "distribution": distribution,
            "side": side,
            "keep_projection": keep_projection,
            "betas": betas,
            "eps": eps,
            "storage": storage,
            "projection_seed": projection_seed,
        }
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the arguments of the subspace beside the common ones."""
        super().validate(group)
        whole(group, "rank", least=1)
        whole(group, "update_interval", least=1)
        positive(group, "proximal", zero=True)
        if group["distribution"] not in random.DISTRIBUTIONS:
            raise unknown("distribution", group["distribution"], random.DISTRIBUTIONS)
        if group["side"] not in projection.SIDES:
            raise unknown("side", group["side"], projection.SIDES)
        if not isinstance(group["keep_projection"], bool):
            raise ValueError(
                f"keep_projection must be True or False, got {group['keep_projection']!r}"
            )

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Moments of B; B under the proximal term; P where it is kept."""
        basis, coefficients = _shapes(shape, group)
        kept = adam.buffers(coefficients)
        if group["proximal"]:
            kept["coefficients"] = Buffer(coefficients)
        if group["keep_projection"]:
            kept["projection"] = Buffer(basis, kind="projection")
        return kept

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """One inner step; the first of an outer step discards what the last one has left."""
        inner = (state["step"] - 1) % group["update_interval"]
        matrix = as_matrix(grad)
        side = projection.resolve_side(matrix_shape(tuple(grad.shape)), group["side"])
        basis = self._basis(matrix, state, group, param)
        if inner == 0:
            for key in self.buffers(tuple(grad.shape), group).keys() - {"projection"}:
                value = load(state, key)
                store(state, key, value.zero_())
        coefficients = projection.project(matrix, basis, side)
        if group["proximal"]:
            coefficients.add_(load(state, "coefficients"), alpha=2 * group["proximal"])
        answer = adam.direction(coefficients, {**state, "step": inner + 1}, group)
        change = answer.value.mul_(answer.step_size)
        if group["proximal"]:
            total = load(state, "coefficients")
            store(state, "coefficients", total.sub_(change))
        return projection.back(change, basis, side).view_as(param)

    def _basis(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """P of this outer step: the kept one, or drawn (again) from its seed."""
        outer, inner = divmod(state["step"] - 1, group["update_interval"])
        if group["keep_projection"] and inner:
            return load(state, "projection")
        (length, rank), _ = _shapes(tuple(grad.shape), group)
        draw = random.DISTRIBUTIONS[group["distribution"]]
        key = (group["projection_seed"], self.name_of(param), outer)
        basis = draw(length, rank, *key, like=grad)
        if group["keep_projection"]:
            store(state, "projection", basis)
            basis = load(state, "projection")  # as it is stored: rounded under bfloat16
        return basis


def _shapes(
    shape: tuple[int, ...], group: dict[str, Any]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of P and of B."""
    matrix = matrix_shape(shape)
    rank = min(group["rank"], projection.reduced(matrix, group["side"]))
    return projection.shapes(matrix, group["side"], rank)
