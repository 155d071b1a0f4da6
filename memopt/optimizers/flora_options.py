"""The arguments of `memopt.Flora`: what they may be, and which weights they compress."""

from __future__ import annotations

from typing import Any

from memopt.errors import unknown
from memopt.optimizers.arguments import Common, factored, whole
from memopt.subspaces import matrix_shape

MOMENTUM = ("official", "paper")
ASPECT = 4  # longer matrices are left uncompressed: "rule out embeddings", the released code


class FloraOptions(Common, total=False):
    """Arguments of Flora that are Adafactor's, and storage.

    Attributes:
        eps: added to g*g, and the least RMS of a weight; default (1e-30, 1e-3).
        clip_threshold: largest RMS of an update; default 1.0.
        decay_rate: exponent of the second moment's decay; default -0.8.
        scale_parameter: whether the rate follows the weight's RMS; default True.
        storage: of the moments: ``"float32"`` (default), ``"bfloat16"`` or ``"8bit"``.
    """

    eps: tuple[float, float]
    clip_threshold: float
    decay_rate: float
    scale_parameter: bool
    storage: str


def check(group: dict[str, Any]) -> None:
    """Raises for a value out of range."""
    factored(group)
    for key in ("rank", "update_interval", "accumulation_rank"):
        if key != "accumulation_rank" or group[key] is not None:
            whole(group, key, least=1)
    beta1 = group["beta1"]
    if beta1 is not None and not (isinstance(beta1, int | float) and 0 <= beta1 < 1):
        raise ValueError(f"beta1 must be in [0, 1), or None, got {beta1!r}")
    if group["momentum"] not in MOMENTUM:
        raise unknown("momentum", group["momentum"], MOMENTUM)


def compresses(shape: tuple[int, ...], group: dict[str, Any], rank: int) -> bool:
    """Whether a weight of this shape has a low-rank momentum (or sum of gradients)."""
    if len(shape) < 2 or group["treated"] is False:
        return False
    short, long = sorted(matrix_shape(shape))
    return short >= rank and long <= ASPECT * short
