"""What Fira and APOLLO share: Adam on R says by how much each channel of G is scaled."""

from __future__ import annotations

from typing import Any

from memopt.optimizers.arguments import positive
from memopt.optimizers.projected import Projected
from memopt.states import Buffer


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

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Not with the whole gradient in the step."""
        return "its step needs the gradient of the whole mini-batch beside the projected one"
