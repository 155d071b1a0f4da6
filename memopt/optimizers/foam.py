"""FOAM: Adam on block means of the gradient, plus the residual (Wen et al., arXiv 2512.07112)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.errors import unknown
from memopt.optimizers.arguments import Common, positive, whole
from memopt.optimizers.base import MemoptOptimizer
from memopt.rules import adam
from memopt.states import Buffer, load, store
from memopt.subspaces import as_matrix, haar, matrix_shape

SECOND_MOMENTS = ("official", "paper")


class FOAM(MemoptOptimizer):
    """Moments of block means, one for ``2^level`` neighbouring columns; the rest has no momentum.

    With ``A`` the mean of each block, ``E`` its repetition, ``r`` the ``residual_scale``:
    ``R = G - (G A) E``; ``m <- b1 m + (1-b1) G A``; ``v <- b2 v + (1-b2) (G*G) A``;
    ``W <- W - lr c_t scale (m E + r R) / (sqrt(v E + r^2 R*R) + eps)``.

    The numerator at r = 1 is GWT's for Haar without limiter; the residual here stands in its own
    denominator, so that it moves no weight by more than ``lr c_t scale``, where GWT divides it by
    the denominator of the mean.

    State per m x n weight: ``2 m ceil(n / 2^level)``.

    Args:
        params: see `MemoptOptimizer`; weights of more than two dimensions are flattened to
            (out, rest), widths that 2^level does not divide are padded with zeros.
        lr: learning rate; treated weights move at ``lr * scale``.
        level: fold level l; 0 is Adam.
        scale: alpha.
        residual_scale: r, ``res_scale`` of the official code (an accepted alias in groups); 0 or
            more.
        second_moment: what v averages: ``"official"``: the means of squares, as the released code;
            ``"paper"``: the squares of means, ``v <- b2 v + (1-b2) (G A)*(G A)``.
        betas, eps: Adam's; defaults are the official code's.
        storage: ``"float32"``, ``"bfloat16"`` or ``"8bit"`` moments.
        **common: see `memopt.optimizers.arguments.Common`; the decay follows the update.
    """

    decay_last = True
    aliases = {"res_scale": "residual_scale"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-2,
        *,
        level: int = 2,
        scale: float = 0.25,
        residual_scale: float = 1.0,
        second_moment: str = "official",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        storage: str = "float32",
        **common: Unpack[Common],
    ) -> None:
        defaults = {
            "lr": lr,
            "level": level,
            "scale": scale,
            "residual_scale": residual_scale,
            "second_moment": second_moment,
            "betas": betas,
            "eps": eps,
            "storage": storage,
        }
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks FOAM's own arguments beside the common ones."""
        super().validate(group)
        whole(group, "level", least=0, most=haar.MAX_LEVEL)
        positive(group, "scale")
        positive(group, "residual_scale", zero=True)
        if group["second_moment"] not in SECOND_MOMENTS:
            raise unknown("second_moment", group["second_moment"], SECOND_MOMENTS)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Adam's moments of the block means."""
        rows, columns = matrix_shape(shape)
        return adam.buffers((rows, haar.approximation_width(columns, group["level"])))

    def row_block(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Blocks lie within rows."""
        return group

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The step of the class docstring, block by block."""
        matrix, (beta1, beta2) = as_matrix(grad), group["betas"]
        blocks = haar.pad(matrix, group["level"]).unflatten(-1, (-1, 2 ** group["level"]))
        mean = blocks.mean(-1)
        residual = (blocks - mean.unsqueeze(-1)).mul_(group["residual_scale"])
        official = group["second_moment"] == "official"
        square = blocks.square().mean(-1) if official else mean.square()
        exp_avg = load(state, "exp_avg").mul_(beta1).add_(mean, alpha=1 - beta1)
        exp_avg_sq = load(state, "exp_avg_sq").mul_(beta2).add_(square, alpha=1 - beta2)
        store(state, "exp_avg", exp_avg)
        store(state, "exp_avg_sq", exp_avg_sq)
        denominator = residual.square().add_(exp_avg_sq.unsqueeze(-1)).sqrt_().add_(group["eps"])
        update = residual.add_(exp_avg.unsqueeze(-1)).div_(denominator)
        step_size = (
            group["lr"] * group["scale"] * adam.bias_correction(state["step"], (beta1, beta2))
        )
        return update.mul_(step_size).flatten(-2)[:, : matrix.shape[1]].reshape(param.shape)
