"""Adam-mini: one learning rate for each block of a weight (Zhang et al., arXiv 2406.16793)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.blocks import Block, block_groups, blocks_of
from memopt.optimizers.arguments import Common
from memopt.optimizers.base import MemoptOptimizer
from memopt.rules import adam, adam_mini
from memopt.states import Buffer


class AdamMini(MemoptOptimizer):
    """Adam whose second moment is one number for each block of a weight.

    ``m <- b1 m + (1-b1) g``; ``v_b <- b2 v_b + (1-b2) mean of block b's g*g``;
    ``W <- W (1 - lr weight_decay) - lr (m / (1-b1^t)) / (sqrt(v_b / (1-b2^t)) + eps)``.

    The blocks come from the model's modules: `memopt.block_groups`, which `memopt.create` calls.

    State per m x n weight: ``m n`` and one number a block.

    Args:
        params: groups of `memopt.block_groups`; or parameters, named parameters, or groups with a
            ``block`` of their own. A group with ``treated=False`` gets plain Adam.
        lr: learning rate, as AdamW's.
        betas, eps: Adam's.
        block: for groups without one: ``"rows"``: one block a row of a weight of two or more
            dimensions, plain Adam for the others; ``"element"``: plain Adam; ``"tensor"``: one for
            the whole; or r: one for r consecutive rows, as an attention head's.
        storage: ``"float32"``, ``"bfloat16"`` or ``"8bit"`` moments.
        **common: see `memopt.optimizers.arguments.Common`; the decay precedes the update.

    Raises:
        ValueError: r does not divide the rows of a weight.
    """

    min_ndim = 0
    partition = staticmethod(block_groups)

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        block: Block = "rows",
        storage: str = "float32",
        **common: Unpack[Common],
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "block": block, "storage": storage}
        super().__init__(params, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the blocks of each parameter beside the common arguments."""
        super().validate(group)
        for param in group["params"]:
            blocks_of(tuple(param.shape), group["block"], self.name_of(param))

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """First moment in full, one second moment a block."""
        return adam_mini.block_buffers(shape, blocks_of(shape, group["block"]))

    def row_block(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Where no block has more than one row; a head may lie on two processes."""
        return group if group["block"] in ("rows", "element", 1) else None

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """As Adam's; eps is added to the corrected root, as in torch and the official code."""
        betas, step = group["betas"], state["step"]
        eps = group["eps"] * (1 - betas[1] ** step) ** 0.5
        exp_avg, denominator = adam_mini.moments(grad, state, betas, eps)
        update = adam_mini.quotient(exp_avg, denominator)
        return update.mul_(group["lr"] * adam.bias_correction(step, betas))
