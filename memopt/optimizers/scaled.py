"""What Fira and APOLLO share: Adam on R says by how much each channel of G is scaled."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memopt.optimizers.arguments import positive
from memopt.optimizers.projected import Projected, Work
from memopt.rules import Direction, adam
from memopt.states import Buffer
from memopt.subspaces import projection


class Scaled(Projected):
    """Projected Adam, the limiter's norm, and no choice of rule: Adam's is the method."""

    common_defaults = {k: v for k, v in Projected.common_defaults.items() if k != "rule"}

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the limiter's bound beside the common arguments."""
        super().validate(group)
        if group["norm_growth_limit"] is not None:
            positive(group, "norm_growth_limit")

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Basis, moments of R, and the norm that the limiter remembers."""
        kept = super().buffers(shape, group)
        if group["norm_growth_limit"] is None:
            return kept
        return {**kept, "update_norm": Buffer((), kind="scalar")}

    def sketched(self, matrix: Tensor, work: Work) -> tuple[str, Tensor, Tensor, Direction]:
        """Side, basis, R, and what Adam makes of R."""
        side = self._side(work)
        basis = self.basis(matrix, side, work)
        coefficients = projection.project(matrix, basis, side)
        return side, basis, coefficients, adam.direction(coefficients, work.state, work.group)

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Not with the whole gradient in the step."""
        return "its step needs the gradient of the whole mini-batch beside the projected one"
