"""GWT: Adam on Haar-wavelet coefficients of the gradient (Wen et al., arXiv 2501.07237)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from memopt.errors import unknown
from memopt.optimizers.base import MemoptOptimizer, positive, whole
from memopt.rules import adam
from memopt.states import Buffer
from memopt.subspaces import as_matrix, haar, matrix_shape

WAVELETS = ("haar",)
LIMITER_EPS = 1e-8


class GWT(MemoptOptimizer):
    """Moments on the approximation band only; details share its denominator.

    ``[A, D_L .. D_1] = Haar_L(G)``; Adam's ``M, V`` on A; ``N = sqrt(V) + eps``; ``U = M / N``
    limited by c to grow at most ``norm_growth_limit`` a step; ``D_l <- D_l / (c N_l)`` with N
    repeated to the width of the band; ``W <- W - lr c_t scale HaarInverse([U/c, D_L .. D_1])``.

    State per m x n weight: ``2 m ceil(n / 2^level)`` moments and one norm.

    Args:
        params: see `MemoptOptimizer`; weights of more than two dimensions are flattened to
            (out, rest), the transform runs along the last axis.
        lr: learning rate; treated weights move at ``lr * scale``.
        level: L, levels of the transform, 0 or more (0: Adam with the limiter).
        wavelet: ``"haar"``.
        scale: alpha.
        norm_growth_limit: gamma; None switches the limiter off.
        betas, eps: Adam's; defaults are the official code's.
        weight_decay: decoupled, applied after the update with the full learning rate.
        storage: ``"float32"``, ``"bfloat16"`` or ``"8bit"`` moments.
        nonfinite, maximize, rounding: see `MemoptOptimizer`.

    Without a warm-up that starts at zero, the first updates of the details are heavy-tailed: they
    have no momentum, but Adam's bias correction multiplies them by 1/(1-beta1^t) all the same.
    """

    decay_last = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        level: int = 2,
        wavelet: str = "haar",
        scale: float = 0.25,
        norm_growth_limit: float | None = 1.01,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        storage: str = "float32",
        nonfinite: str = "raise",
        maximize: bool = False,
        rounding: str = "nearest",
    ) -> None:
        defaults = {
            "lr": lr,
            "level": level,
            "wavelet": wavelet,
            "scale": scale,
            "norm_growth_limit": norm_growth_limit,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "storage": storage,
        }
        super().__init__(
            params, defaults, nonfinite=nonfinite, maximize=maximize, rounding=rounding
        )

    def validate(self, group: dict[str, Any]) -> None:
        """Checks level, wavelet and limiter beside the common arguments."""
        super().validate(group)
        whole(group, "level", least=0)
        if group["wavelet"] not in WAVELETS:
            raise unknown("wavelet", group["wavelet"], WAVELETS)
        if group["norm_growth_limit"] is not None:
            positive(group, "norm_growth_limit")

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Both moments of the approximation band, and the norm that the limiter remembers."""
        rows, columns = matrix_shape(shape)
        band = (rows, haar.approximation_width(columns, group["level"]))
        return {**adam.buffers(band), "update_norm": Buffer((), kind="scalar")}

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """Fast form: in a block of 2^L columns all bands share one denominator.

        With a the block sum times ``2^(-L/2)``, the explicit transform of `explicit_direction`
        collapses to ``(g + (M - a) 2^(-L/2)) / (c N)``: one pass, no detail bands.
        """
        matrix, level = as_matrix(grad), group["level"]
        band = haar.approximate(matrix, level)
        exp_avg, denominator = adam.moments(band, state, group["betas"], group["eps"])
        limit = norm_growth_divisor(exp_avg / denominator, state, group["norm_growth_limit"])
        shift = (exp_avg - band).mul_(2 ** (-level / 2))
        blocks = haar.pad(matrix, level).unflatten(1, (-1, 2**level))
        direction = (blocks + shift[..., None]).div_((denominator * limit)[..., None])
        step_size = group["lr"] * adam.bias_correction(state["step"], group["betas"])
        direction = direction.flatten(1)[:, : matrix.shape[1]]
        return (direction * (step_size * group["scale"])).view_as(param)


def norm_growth_divisor(
    update: Tensor, state: dict[str, Any], limit: float | None
) -> Tensor | float:
    """Fira's limiter: the c by which an update is divided so that its norm grows at most so much.

    ``c = max(||U|| / (s + 1e-8), gamma) / gamma``, ``s <- ||U|| / c``; c = 1 at the first step.
    Stays on the device: no synchronisation.
    """
    if limit is None:
        return 1.0
    norm = update.norm()
    if state["step"] == 1:
        state["update_norm"].copy_(norm)
        return 1.0
    divisor = (norm / (state["update_norm"] + LIMITER_EPS)).clamp_min(limit) / limit
    state["update_norm"].copy_(norm / divisor)
    return divisor


def explicit_direction(
    grad: Tensor, exp_avg: Tensor, denominator: Tensor, limit: Tensor | float, level: int
) -> Tensor:
    """The paper's form, band by band; the tests hold `GWT.update` equal to it.

    Args:
        grad: (m, n).
        exp_avg: M after this gradient, (m, ceil(n / 2^level)).
        denominator: N after this gradient, same shape.
        limit: c of the limiter.
        level: L.

    Returns:
        ``HaarInverse([M / (c N), D_L / (c N_L), ..., D_1 / (c N_1)])``, (m, n).
    """
    _, details = haar.forward(grad, level)
    scaled, repeated = [], denominator * limit
    for detail in details:
        scaled.append(detail / repeated)
        repeated = torch.repeat_interleave(repeated, 2, dim=1)
    return haar.inverse(exp_avg / (denominator * limit), scaled, grad.shape[1])
