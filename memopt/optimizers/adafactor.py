"""Adafactor: a factored second moment (Shazeer & Stern, arXiv 1804.04235)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.optimizers.arguments import factored, positive
from memopt.optimizers.uniform import Stored, StoredCommon
from memopt.rules import adafactor
from memopt.states import Buffer, load, store


class Adafactor(Stored):
    """Algorithm 5 of the paper, with an optional momentum over the scaled update.

    ``u = g / sqrt(v)``, v of rank one from row and column means of ``g*g + eps1``, decay
    ``1 - t^decay_rate``; ``u <- u / max(1, RMS(u) / d)``; ``theta <- theta - rate u`` with
    ``rate = rho max(eps2, RMS(theta))``. AdaLomo is this without momentum, inside backward.

    State per m x n weight: m + n, and mn with ``beta1``; more dimensions: rows and columns of the
    last two, per leading index; fewer: the full second moment.

    Args:
        params: parameters, named parameters, or groups; every parameter is treated.
        lr: rho. None (default) takes the paper's relative steps ``min(1e-2, t^-1/2)``; there is
            then no rate that a scheduler could set.
        warmup_init: relative steps ``min(1e-6 t, t^-1/2)``.
        scale_parameter: whether the rate follows the weight's RMS; False: ``rate = rho``.
        beta1: of the momentum of ``rate u``; None keeps none.
        eps: eps1, added to g*g, and eps2, the least RMS of a weight.
        clip_threshold: d, largest RMS of u.
        decay_rate: exponent of the second moment's decay.
        **common: see `memopt.optimizers.uniform.StoredCommon`; the decay is ``rate weight_decay``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        *,
        warmup_init: bool = False,
        scale_parameter: bool = True,
        beta1: float | None = None,
        eps: tuple[float, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        **common: Unpack[StoredCommon],
    ) -> None:
        defaults = {
            "lr": lr,
            "warmup_init": warmup_init,
            "scale_parameter": scale_parameter,
            "beta1": beta1,
            "eps": eps,
            "clip_threshold": clip_threshold,
            "decay_rate": decay_rate,
        }
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the factored moment's constants and the two ways of setting the rate."""
        super().validate(group if group["lr"] is not None else {**group, "lr": 0.0})
        factored(group)
        if group["beta1"] is not None:
            positive(group, "beta1")
            if group["beta1"] >= 1:
                raise ValueError(f"beta1 must be below one, or None, got {group['beta1']!r}")
        if group["warmup_init"] and group["lr"] is not None:
            raise ValueError("warmup_init is a form of relative steps, which lr replaces: lr=None")

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The factored second moment, and a momentum where ``beta1`` asks for one."""
        momentum = {"exp_avg": Buffer(shape)} if group["beta1"] is not None else {}
        return momentum | adafactor.factored_buffers(shape)

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """``rate u``, or its momentum."""
        update = adafactor.normalised(grad, state, group["eps"][0], group["decay_rate"])
        update.div_(adafactor.excess(update, group["clip_threshold"]))
        update.mul_(_rate(param, state, group))
        if group["beta1"] is None:
            return update
        exp_avg = load(state, "exp_avg")
        exp_avg.mul_(group["beta1"]).add_(update, alpha=1 - group["beta1"])
        store(state, "exp_avg", exp_avg)
        return exp_avg

    def apply(
        self, param: Tensor, update: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """The decay follows the rate, not ``lr`` alone."""
        if group["weight_decay"]:
            group = {**group, "lr": _rate(param, state, group)}
        super().apply(param, update, state, group)


def _rate(param: Tensor, state: dict[str, Any], group: dict[str, Any]) -> Tensor | float:
    rho: float = group["lr"]
    if group["lr"] is None:
        rho = min(1e-6 * state["step"] if group["warmup_init"] else 1e-2, state["step"] ** -0.5)
    if not group["scale_parameter"]:
        return rho
    return adafactor.relative(param, rho, group["eps"][1])
