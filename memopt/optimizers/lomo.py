"""LOMO: SGD inside the backward pass (Lv et al., arXiv 2306.09782)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.backward import update_in_backward
from memopt.optimizers.arguments import Common, positive
from memopt.optimizers.uniform import Uniform
from memopt.states import Buffer


class InBackward(Uniform):
    """An optimizer that updates in backward from its construction on, every parameter alike.

    Args:
        params: parameters, named parameters, or groups (best: `memopt.param_groups`).
        defaults: the method's hyperparameters.
        micro_batches: backward passes that make one update. With more than one the gradients of
            all parameters are held until the last, as in ordinary accumulation.
        max_norm: exact clipping to this global gradient norm; gradients then come from
            ``optimizer.timing.backward(lambda: loss)``, which runs backward twice.
        **common: see `memopt.optimizers.arguments.Common`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        micro_batches: int,
        max_norm: float | None,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(params, defaults, **common)
        update_in_backward(self, micro_batches, max_norm)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks ``clip_value`` beside the common arguments."""
        super().validate(group)
        if group["clip_value"] is not None:
            positive(group, "clip_value")

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """No moment takes a micro-gradient: LOMO has none, AdaLomo's clips by the whole."""
        return (
            "it updates in backward, from the gradient of the whole mini-batch: "
            "build it with micro_batches=k, which adds gradients up until the last"
        )


def clipped(grad: Tensor, limit: float | None) -> Tensor:
    """Each element clamped to ``[-limit, limit]``; changes the direction, needs no second pass."""
    return grad if limit is None else grad.clamp(-limit, limit)


class LOMO(InBackward):
    """``theta <- theta - lr g`` as soon as g is known; then g is dropped. No state.

    Args:
        params: see `InBackward`.
        lr: learning rate (the paper: 0.03 to 0.05 for instruction tuning of LLaMA).
        clip_value: largest magnitude of a gradient element (recommended below lr 1e-3).
        micro_batches, max_norm: see `InBackward`.
        **common: see `memopt.optimizers.arguments.Common`.
    """

    elementwise = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        clip_value: float | None = None,
        micro_batches: int = 1,
        max_norm: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        defaults = {"lr": lr, "clip_value": clip_value}
        super().__init__(params, defaults, micro_batches, max_norm, **common)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """None."""
        return {}

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """``lr g``."""
        return clipped(grad, group["clip_value"]) * group["lr"]
