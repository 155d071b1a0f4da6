"""APOLLO: the gradient, scaled per channel as Adam scales a random sketch (arXiv 2412.05270)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.errors import unknown
from memopt.optimizers.projected import AdamOnR, Work
from memopt.optimizers.scaled import Scaled
from memopt.rules import scaling
from memopt.rules.limiter import norm_growth_divisor
from memopt.states import Buffer
from memopt.subspaces import as_matrix, matrix_shape, projection, random

CHOICES = {"projection": ("gaussian", "svd"), "granularity": ("channel", "tensor")}


class ApolloOptions(AdamOnR, total=False):
    """Arguments that APOLLO and APOLLO-Mini share.

    Attributes:
        update_interval: T, steps between projections; default 200.
        projection: ``"gaussian"`` (default), or ``"svd"``: GaLore's basis, always kept.
        keep_projection: keep P between its refreshes: the same bits in float32, no draw a step;
            default False.
        scale_front: apply ``scale`` before the limiter, not after it; default False. It matters
            where ``scale`` changes.
        norm_growth_limit: gamma; default 1.01, None switches the limiter off.
        projection_seed: seed of P, with the parameter's name and the number of the refresh;
            default 0.
    """

    update_interval: int
    projection: str
    keep_projection: bool
    scale_front: bool
    norm_growth_limit: float | None
    projection_seed: int


class APOLLO(Scaled):
    """``R = G P`` with a random P; ``s_j = ||Rtilde_j|| / ||R_j||``; the step is G times s.

    Rtilde is what Adam makes of R. ``U = s G``, limited to grow by at most ``norm_growth_limit`` a
    step; ``W <- W - lr c_t scale U``. A channel j is a row of G for a right projection, a column
    for a left one. The entries of P are N(0, 1/r), new every T steps.

    State per m x n weight, reduced side m: ``2 n r`` moments and one norm. P is drawn again from
    its seed at every step, unless it is kept (``m r`` more).

    Args:
        params: see `MemoptOptimizer`.
        lr: learning rate; treated weights move at ``lr * scale``.
        rank: r; at most the shorter side is used.
        scale: alpha of the paper (the released code's ``scale`` is its square).
        granularity: ``"channel"``, or ``"tensor"``: one s for the whole weight.
        **common: see `ApolloOptions`; the decay follows the update.
    """

    common_defaults = {
        **Scaled.common_defaults,
        "update_interval": 200,
        "projection": "gaussian",
        "keep_projection": False,
        "scale_front": False,
        "norm_growth_limit": 1.01,
        "projection_seed": 0,
    }

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        rank: int = 256,
        scale: float = 1.0,
        granularity: str = "channel",
        **common: Unpack[ApolloOptions],
    ) -> None:
        defaults = {"lr": lr, "rank": rank, "scale": scale, "granularity": granularity}
        super().__init__(params, defaults, **common)  # type: ignore[misc]

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the choices beside the common arguments."""
        super().validate(group)
        for key in ("keep_projection", "scale_front"):
            if not isinstance(group[key], bool):
                raise ValueError(f"{key} must be True or False, got {group[key]!r}")
        for key, known in CHOICES.items():
            if group[key] not in known:
                raise unknown(key, group[key], known)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Moments of R and the limiter's norm; P where it is kept."""
        kept = super().buffers(shape, group)
        return kept if _keeps(group) else {k: v for k, v in kept.items() if k != "projection"}

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The step of the class docstring."""
        matrix = as_matrix(grad)
        side, _, coefficients, answer = self.sketched(matrix, Work(state, group, param))
        channels = side if group["granularity"] == "channel" else None
        factors = scaling.scale(answer.value, coefficients, channels)
        front, rear = (group["scale"], 1.0) if group["scale_front"] else (1.0, group["scale"])
        update = matrix * factors.mul_(front)
        update.div_(norm_growth_divisor(update, state, group["norm_growth_limit"]))
        return update.mul_(answer.step_size * rear).view_as(param)

    def basis(self, grad: Tensor, side: str, work: Work) -> Tensor:
        """P of this step: the kept one, or drawn again from its seed."""
        if _keeps(work.group):
            return super().basis(grad, side, work)
        return self._drawn(grad, side, work)

    def refresh(self, grad: Tensor, basis: Tensor, side: str, work: Work) -> Tensor:
        """A new P to be kept."""
        if work.group["projection"] == "svd":
            return projection.svd_basis(grad, basis.shape[1], side)
        return self._drawn(grad, side, work)

    def _drawn(self, grad: Tensor, side: str, work: Work) -> Tensor:
        state, group, param = work
        shape = matrix_shape(tuple(grad.shape))
        length, rank = projection.shapes(shape, side, self.rank_of(shape, group))[0]
        number = (state["step"] - 1) // group["update_interval"]
        key = (group["projection_seed"], self.name_of(param), number)
        return random.gaussian(length, rank, *key, like=grad)


class APOLLOMini(APOLLO):
    """APOLLO with rank 1 and one scale for the whole tensor; a larger alpha makes up for it.

    State per m x n weight, reduced side m: ``2 n`` moments and one norm.

    Args:
        params: see `MemoptOptimizer`.
        lr: learning rate; treated weights move at ``lr * scale``.
        rank: r.
        scale: alpha of the paper, sqrt(128).
        granularity: as for `APOLLO`.
        **common: see `ApolloOptions`.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        rank: int = 1,
        scale: float = 128**0.5,
        granularity: str = "tensor",
        **common: Unpack[ApolloOptions],
    ) -> None:
        super().__init__(params, lr, rank=rank, scale=scale, granularity=granularity, **common)


def _keeps(group: dict[str, Any]) -> bool:
    return bool(group["keep_projection"]) or group["projection"] == "svd"
