"""GWT: Adam on Haar-wavelet coefficients of the gradient (Wen et al., arXiv 2501.07237)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.optimizers import gwt_options
from memopt.optimizers.arguments import Common
from memopt.optimizers.base import MemoptOptimizer
from memopt.rules import adam, rule
from memopt.rules.base import Direction
from memopt.rules.limiter import norm_growth_divisor
from memopt.states import Buffer
from memopt.subspaces import haar, largest, matrix_shape, wavelet


class GWT(MemoptOptimizer):
    """Moments on the approximation band only; details share its denominator.

    ``[A, D_L .. D_1] = Haar_L(G)``; Adam's ``M, V`` on A; ``N = sqrt(V) + eps``; ``U = M / N``
    limited by c to grow at most ``norm_growth_limit`` a step; ``D_l <- D_l / (c N_l)`` with N
    repeated to the width of the band; ``W <- W - lr c_t scale HaarInverse([U/c, D_L .. D_1])``.

    State per m x n weight: ``2 m ceil(n / 2^level)`` moments (rule adam) and one norm.

    Args:
        params: see `MemoptOptimizer`; weights of more than two dimensions are flattened to
            (out, rest).
        lr: learning rate; treated weights move at ``lr * scale``.
        level: L, levels of the transform, 0 or more (0: Adam with the limiter).
        wavelet: ``"haar"`` or a discrete wavelet of PyWavelets, see `memopt.subspaces.wavelet`.
        scale: alpha.
        norm_growth_limit: gamma of rules adam and adam_mini; None switches the limiter off.
        rule: ``"adam"``, ``"adam_mini"``, ``"adafactor"`` or ``"muon"``.
        axis: axis of the transform: ``"last"`` (the paper's), ``"first"``, or the ``"cheapest"``.
        details: ``"official"``, or ``"safe"``: details get ``sqrt(1-b2^t)`` but not
            ``1/(1-b1^t)``, since they have no momentum, and no weight moves by more than
            ``lr scale detail_clip`` through them. Recommended without a warm-up from zero.
        detail_clip: bound of the safe details, in units of ``lr * scale``.
        selection: ``"approximation"`` (the paper's), or ``"largest"``: **not the paper's method**,
            but what summaries of it describe, see `memopt.subspaces.largest`.
        share: share of coefficients kept by ``"largest"``; None means ``2^-level``.
        selection_interval: steps between choices of positions by ``"largest"``.
        betas, eps: Adam's; defaults are the official code's (Muon's momentum is ``betas[0]``).
        storage: ``"float32"``, ``"bfloat16"`` or ``"8bit"`` moments.
        **common: see `memopt.optimizers.arguments.Common`; the decay follows the update.
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
        rule: str = "adam",
        axis: str = "last",
        details: str = "official",
        detail_clip: float = 3.0,
        selection: str = "approximation",
        share: float | None = None,
        selection_interval: int = 200,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        storage: str = "float32",
        **common: Unpack[Common],
    ) -> None:
        # fmt: off
        defaults = {
            "lr": lr, "level": level, "wavelet": wavelet, "scale": scale, "rule": rule,
            "norm_growth_limit": norm_growth_limit, "axis": axis, "details": details,
            "detail_clip": detail_clip, "selection": selection, "share": share,
            "selection_interval": selection_interval, "betas": betas, "eps": eps,
            "storage": storage,
        }
        # fmt: on
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks GWT's own arguments beside the common ones."""
        super().validate(group)
        gwt_options.check(group)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The rule's moments of the approximation band, and the limiter's norm."""
        rows, columns = matrix_shape(shape)
        if gwt_options.transposes((rows, columns), group):
            rows, columns = columns, rows
        if group["selection"] == "largest":
            moments = largest.buffers(rows, columns, group)
        else:
            width = haar.approximation_width(columns, group["level"])
            moments = rule(group["rule"]).buffers((rows, width))
        if gwt_options.gamma(group) is None:
            return moments
        return {**moments, "update_norm": Buffer((), kind="scalar")}

    def row_block(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Along the last axis rows are independent, under a rule that looks at one at a time."""
        along_rows = not gwt_options.transposes(matrix_shape(tuple(param.shape)), group)
        by_rows = rule(group["rule"]).by_rows and group["selection"] == "approximation"
        return {**group, "axis": "last"} if along_rows and by_rows else None

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The step of the class docstring; no detail band is built for Haar."""
        return self._update(grad, state, group, param, rule(group["rule"]).direction)

    def _update(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
        direction: Callable[..., Direction],
    ) -> Tensor:
        matrix, transposed = gwt_options.oriented(grad, group)
        transform = wavelet.transform(group["wavelet"], group["level"])
        gamma = gwt_options.gamma(group)
        if group["selection"] == "largest":
            answer = largest.direction(matrix, transform, state, group)
            update = answer.value / norm_growth_divisor(answer.value, state, gamma)
        else:
            band = transform.approximate(matrix)
            answer = direction(band, state, group)
            limit = norm_growth_divisor(answer.value, state, gamma)
            details = transform.scaled_details(matrix, band, answer.divisor * limit)
            if group["details"] == "safe":
                details = gwt_options.tamed(details, state["step"], group)
            update = transform.spread(answer.value / limit, matrix.shape[1]) + details
        update = answer.finish(update) if answer.finish else update
        update = update.mul_(answer.step_size * group["scale"])
        return (update.T if transposed else update).reshape(param.shape)

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Rule adam on the approximation band can; the transform is linear."""
        can = group["rule"] == "adam" and group["selection"] == "approximation"
        return None if can else gwt_options.NO_ACCUMULATION

    def accumulate(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
        *,
        first: bool,
    ) -> None:
        """Moments of the band, as AdamA's. The details need the sum of gradients: it is held."""
        matrix, _ = gwt_options.oriented(grad, group)
        band = wavelet.transform(group["wavelet"], group["level"]).approximate(matrix)
        adam.fold(band, state, group["betas"], first=first)
        state["held"] = grad.clone() if first else state["held"].add_(grad)

    def finish(self, state: dict[str, Any], group: dict[str, Any], param: Tensor) -> Tensor:
        """The step from the band's moments and the held sum."""
        return self._update(state.pop("held"), state, group, param, adam.settled)
