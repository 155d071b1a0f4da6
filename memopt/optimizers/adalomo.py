"""AdaLomo: Adafactor without momentum, inside the backward pass (Lv et al., arXiv 2310.10195)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from memopt.optimizers.arguments import Common, positive
from memopt.optimizers.lomo import InBackward, clipped
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
        positive(group, "clip_threshold")
        eps = group["eps"]
        if not (isinstance(eps, tuple | list) and len(eps) == 2 and min(eps) > 0):
            raise ValueError(f"eps must be two numbers above zero, got {eps!r}")
        if not group["decay_rate"] < 0:
            raise ValueError(f"decay_rate must be below zero, got {group['decay_rate']!r}")

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Row and column means of g*g over the last two axes; all of g*g below two dimensions."""
        if len(shape) < 2:
            return {"exp_avg_sq": Buffer(shape, signed=False)}
        return {
            "exp_avg_sq_row": Buffer(shape[:-1], signed=False),
            "exp_avg_sq_col": Buffer(shape[:-2] + shape[-1:], signed=False),
        }

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The update and the weight decay, which share one learning rate."""
        grad = clipped(grad, group["clip_value"])
        decay = 1.0 - state["step"] ** group["decay_rate"]
        square = grad.square().add_(group["eps"][0])
        if grad.ndim < 2:
            update = average(state["exp_avg_sq"], square, decay).rsqrt()
        else:
            row = average(state["exp_avg_sq_row"], square.mean(-1), decay)
            col = average(state["exp_avg_sq_col"], square.mean(-2), decay)
            row = (row / row.mean(-1, keepdim=True)).rsqrt_()
            update = torch.mul(row.unsqueeze(-1), col.rsqrt().unsqueeze(-2), out=square)
        update.mul_(grad)
        rate: Tensor | float = group["lr"]
        if group["grouped_normalization"]:
            update.div_((rms(update) / group["clip_threshold"]).clamp_(min=1.0))
            rate = rms(param.to(grad.dtype)).clamp_(min=group["eps"][1]) * group["lr"]
        if group["weight_decay"]:
            update.add_(param, alpha=group["weight_decay"])
        return update.mul_(rate)

    def apply(
        self, param: Tensor, update: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """Subtracts the update, which includes the weight decay."""
        super().apply(param, update, state, {**group, "weight_decay": 0.0})


def average(moment: Tensor, value: Tensor, decay: float) -> Tensor:
    """``moment <- decay moment + (1 - decay) value``, in place."""
    return moment.mul_(decay).add_(value, alpha=1.0 - decay)


def rms(value: Tensor) -> Tensor:
    """Root mean square."""
    return torch.linalg.vector_norm(value) / value.numel() ** 0.5
