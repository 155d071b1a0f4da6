"""8-bit Adam: Adam whose moments are kept in 8-bit blocks (Dettmers et al., arXiv 2110.02861)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

from torch import Tensor

from memopt.optimizers.uniform import Stored, StoredCommon
from memopt.rules import adam
from memopt.states import Buffer


class Adam8bit(Stored):
    """Adam on the full gradient: both moments to float32, one step, back to 8 bits.

    Blocks of 256 elements, each scaled by its largest magnitude; 255 dynamic code values, signed
    for m and unsigned for v (section 2 of the paper; see `memopt.states.blockwise`). Tensors under
    4096 elements stay in float32; zero stays exactly zero.

    State per weight: 2 bytes, and 8 bytes a block of 256.

    The paper keeps the moments of embeddings in 32 bits: give them a group with
    ``storage="float32"``.

    Args:
        params: parameters, named parameters, or groups; every parameter is treated.
        lr: learning rate.
        betas, eps: Adam's.
        **common: see `memopt.optimizers.uniform.StoredCommon`; ``storage`` is ``"8bit"``.
    """

    elementwise = True
    common_defaults = {**Stored.common_defaults, "storage": "8bit"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        **common: Unpack[StoredCommon],
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps}, **common)

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Both moments in the shape of the weight."""
        return adam.buffers(shape)

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """A micro-gradient is too small an addend for eight bits."""
        return "each micro-gradient would be rounded to the moments' code as it is added"

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """``lr mhat / (sqrt(vhat) + eps)``, from the moments before they are rounded."""
        moments = adam.fold(grad, state, group["betas"], first=True)
        return adam.corrected(*moments, state["step"], group)
