"""What methods share that treat every parameter alike: no projection, no plain-Adam rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Unpack

from torch import Tensor

from memopt.optimizers.arguments import COMMON_DEFAULTS, Common
from memopt.optimizers.base import MemoptOptimizer


class Uniform(MemoptOptimizer):
    """A method for parameters of any shape; a group's ``treated`` plays no part."""

    min_ndim = 0
    elementwise: ClassVar[bool] = False
    """Whether no element of an update looks at others: sharded weights need no gathering then."""

    def treats(self, param: Tensor, group: dict[str, Any]) -> bool:
        """All parameters."""
        return True

    def row_block(
        self, param: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> dict[str, Any] | None:
        """Any rows, of an element-wise method."""
        return group if self.elementwise else None


class StoredCommon(Common, total=False):
    """Arguments of `Stored`, beside those of every method.

    Attributes:
        storage: of the moments: ``"float32"`` (default, but for `Adam8bit`), ``"bfloat16"``, or
            ``"8bit"`` (tensors from 4096 elements on).
    """

    storage: str


class Stored(Uniform):
    """A `Uniform` method whose moments can be kept in less than float32."""

    common_defaults = {**COMMON_DEFAULTS, "storage": "float32"}

    def __init__(
        self, params: Iterable[Any], defaults: dict[str, Any], **common: Unpack[StoredCommon]
    ) -> None:
        super().__init__(params, defaults, **common)  # type: ignore[misc]
