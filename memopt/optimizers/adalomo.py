"""AdaLomo: Adafactor without momentum, inside the backward pass (Lv et al., arXiv 2310.10195)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.optimizers.arguments import Common, factored
from memopt.optimizers.lomo import InBackward, clipped
from memopt.rules import adafactor
from memopt.states import Buffer


class AdaLomo(InBackward):
    """Factored second moment, update clipped by its RMS and scaled by the weight's RMS.

    With ``s = g*g + eps1`` and ``b = 1 - t^decay_rate``: ``r <- b r + (1-b) mean_columns(s)``,
    ``c <- b c + (1-b) mean_rows(s)``, ``v = r c / mean(r)``, ``u = g / sqrt(v)``;
    ``theta <- theta - lr_eff (u / max(1, RMS(u) / clip_threshold) + weight_decay theta)`` with
    ``lr_eff = lr max(eps2, RMS(theta))``.

    State per m x n weight: m + n; more dimensions: rows and columns of the last two, per leading
    index; fewer: the full second moment.

    Args:
        params: see `InBackward`.
        lr: relative learning rate (5e-4 instruction tuning, 1e-3 further pretraining).
        eps: added to g*g, and the least RMS of a weight (the official code's).
        clip_threshold: d, largest RMS of an update.
        decay_rate: exponent of the second moment's decay; b is 0 at the first step.
        grouped_normalization: False drops both RMS factors: ``u`` unclipped, ``lr_eff = lr``.
        clip_value: largest magnitude of a gradient element.
        micro_batches, max_norm: see `InBackward` (the authors advise against norm clipping).
        **common: see `memopt.optimizers.arguments.Common`; the decay's rate has the RMS factor too.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 5e-4,
        *,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        grouped_normalization: bool = True,
        clip_value: float | None = None,
        micro_batches: int = 1,
        max_norm: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
            "grouped_normalization": grouped_normalization,
            "clip_value": clip_value,
        }
        super().__init__(params, defaults, micro_batches, max_norm, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks eps, threshold and decay rate beside the common arguments."""
        super().validate(group)
        factored(group)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Row and column means of g*g over the last two axes; all of g*g below two dimensions."""
        return adafactor.factored_buffers(shape)

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The update and the weight decay, which share one learning rate."""
        grad = clipped(grad, group["clip_value"])
        update = adafactor.normalised(grad, state, group["eps"][0], group["decay_rate"])
        rate: Tensor | float = group["lr"]
        if group["grouped_normalization"]:
            update.div_(adafactor.excess(update, group["clip_threshold"]))
            rate = adafactor.relative(param, group["lr"], group["eps"][1])
        if group["weight_decay"]:
            update.add_(param, alpha=group["weight_decay"])
        return update.mul_(rate)

    def apply(
        self, param: Tensor, update: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Subtracts the update, which includes the weight decay."""
        super().apply(param, update, state, {**group, "weight_decay": 0.0})
