"""Flora: Adafactor with momentum in random coordinates (Hao et al., arXiv 2402.03293)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.optimizers import flora_options
from memopt.optimizers.arguments import COMMON_DEFAULTS
from memopt.optimizers.base import MemoptOptimizer
from memopt.optimizers.flora_options import FloraOptions, compresses
from memopt.rules import adafactor
from memopt.states import Buffer, load, store
from memopt.subspaces import as_matrix, matrix_shape, projection, random


class Flora(MemoptOptimizer):
    """``u = g / sqrt(v)``, v factored; its momentum M is kept as ``M A``, A random of rank r.

    A (N(0, 1/r), from a seed) is new every kappa steps, and M follows: ``M <- M A_old^T A_new`` for
    ``M = (momentum) A``. ``momentum="official"``: ``U = (1-b1) u + b1 M A^T``, then
    ``M <- b1 M + (1-b1) u A``. ``"paper"``: M first, then ``U = M A^T``. Then Adafactor's
    ``W <- W - rate U / max(1, RMS(U) / clip_threshold)``, ``rate = lr max(eps2, RMS(W))``.

    Every parameter is treated; matrices whose sides are at least ``rank`` and differ by a factor of
    at most 4 are compressed, the others have their momentum in full.

    State per m x n weight, reduced side n: ``m r + m + n``. A is drawn again at every step.

    Args:
        params: parameters, named parameters, or groups; a group with ``treated=False`` is not
            compressed.
        lr: learning rate, relative to the weight's RMS.
        rank: r.
        update_interval: kappa, steps between projections.
        beta1: of the momentum; None keeps none (Adafactor).
        momentum: ``"official"`` or ``"paper"``, see above.
        accumulation_rank: rank at which `memopt.accumulate_in_backward` keeps the sum of
            micro-gradients, with a projection of its own that is new at every update.
        projection_seed: seed of A, with the parameter's name and the number of the renewal.
        **common: see `FloraOptions`; the decay is ``rate * weight_decay``.
    """

    min_ndim = 0
    aliases = {"kappa": "update_interval"}
    common_defaults = {
        **COMMON_DEFAULTS,
        "eps": (1e-30, 1e-3),
        "clip_threshold": 1.0,
        "decay_rate": -0.8,
        "scale_parameter": True,
        "storage": "float32",
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        *,
        rank: int = 128,
        update_interval: int = 1000,
        beta1: float | None = 0.9,
        momentum: str = "official",
        accumulation_rank: int | None = None,
        projection_seed: int = 0,
        **common: Unpack[FloraOptions],
    ) -> None:
        # fmt: off
        defaults = {
            "lr": lr, "rank": rank, "update_interval": update_interval, "beta1": beta1,
            "momentum": momentum, "accumulation_rank": accumulation_rank,
            "projection_seed": projection_seed,
        }
        # fmt: on
        super().__init__(params, defaults, **common)  # type: ignore[misc]

    def validate(self, group: dict[str, Any]) -> None:
        """Checks ranks, interval and Adafactor's constants beside the common arguments."""
        super().validate(group)
        flora_options.check(group)

    def treats(self, param: Tensor, group: dict[str, Any]) -> bool:
        """All parameters: what is not compressed is Adafactor's."""
        return True

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The factored second moment, and the momentum in its coordinates."""
        inner = matrix_shape(shape) if len(shape) > 1 else shape
        kept = adafactor.factored_buffers(inner)
        if group["beta1"] is None:
            return kept
        if compresses(shape, group, group["rank"]):
            inner = projection.shapes(matrix_shape(shape), "std", group["rank"])[1]
        return {"exp_avg": Buffer(inner), **kept}

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The step of the class docstring."""
        matrix = as_matrix(grad) if grad.ndim > 1 else grad
        update = adafactor.normalised(matrix, state, group["eps"][0], group["decay_rate"])
        if group["beta1"] is not None:
            if compresses(tuple(param.shape), group, group["rank"]):
                update = self._compressed(update, state, group, param)
            else:
                update.mul_(1 - group["beta1"]).add_(load(state, "exp_avg"), alpha=group["beta1"])
                store(state, "exp_avg", update)
        update.div_(adafactor.excess(update, group["clip_threshold"]))
        return update.mul_(_rate(param, group)).view_as(param)

    def _compressed(
        self, update: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """Momentum of ``update`` through its random coordinates; ``update`` is used up."""
        beta1, exp_avg, rank = group["beta1"], load(state, "exp_avg"), group["rank"]
        before, number = (t // group["update_interval"] for t in (state["step"] - 1, state["step"]))
        side, old = self._projection(update, group, param, rank, before)
        history = projection.back(exp_avg, old, side) if group["momentum"] == "official" else None
        new = old
        if number != before:
            _, new = self._projection(update, group, param, rank, number)
            exp_avg = transferred(exp_avg, old, new, side)
        exp_avg.mul_(beta1).add_(projection.project(update, new, side), alpha=1 - beta1)
        store(state, "exp_avg", exp_avg)
        if history is None:
            return projection.back(exp_avg, new, side)
        return update.mul_(1 - beta1).add_(history, alpha=beta1)

    def _projection(
        self, like: Tensor, group: dict[str, Any], param: Tensor, rank: int, *number: str | int
    ) -> tuple[str, Tensor]:
        """The side that is reduced, and A, drawn from its seed."""
        shape = matrix_shape(tuple(param.shape))
        side = projection.resolve_side(shape, "std")
        key = (group["projection_seed"], self.name_of(param), *number)
        return side, random.gaussian(projection.reduced(shape, side), rank, *key, like=like)

    # ---- accumulation in backward ----------------------------------------------------------

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Not without a rank for the sum of micro-gradients."""
        if group["accumulation_rank"] is not None:
            return None
        return "the sum of micro-gradients has no rank: give accumulation_rank"

    def accumulate(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
        *,
        first: bool,
    ) -> None:
        """Adds one micro-gradient to the sum ``G A``; in full where it is not compressed."""
        rank = group["accumulation_rank"]
        if compresses(tuple(param.shape), group, rank):
            side, basis = self._projection(grad, group, param, rank, "sum", state["step"])
            grad = projection.project(as_matrix(grad), basis, side)
        state["held"] = grad.clone() if first else state["held"].add_(grad)

    def finish(self, state: dict[str, Any], group: dict[str, Any], param: Tensor) -> Tensor:
        """The step on the decompressed sum; its projection is new at every update."""
        grad, rank = state.pop("held"), group["accumulation_rank"]
        if compresses(tuple(param.shape), group, rank):
            side, basis = self._projection(grad, group, param, rank, "sum", state["step"])
            grad = projection.back(grad, basis, side).view(param.shape)
        return self.update(grad, state, group, param)

    def apply(
        self, param: Tensor, update: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> None:
        """The decay follows the rate, not ``lr`` alone."""
        if group["weight_decay"]:
            group = {**group, "lr": _rate(param, group)}
        super().apply(param, update, state, group)


def transferred(exp_avg: Tensor, old: Tensor, new: Tensor, side: str) -> Tensor:
    """M in new coordinates: back by the old projection, then forth by the new one."""
    turn = old.T @ new
    return exp_avg @ turn if side == "right" else turn.T @ exp_avg


def _rate(param: Tensor, group: dict[str, Any]) -> Tensor | float:
    if not group["scale_parameter"]:
        rate: float = group["lr"]
        return rate
    return adafactor.relative(param, group["lr"], group["eps"][1])
