"""The options of `memopt.GWT` beyond the paper's algorithm: what they may be and what they do."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memopt.errors import UnsupportedCombination, unknown
from memopt.optimizers.arguments import positive, whole
from memopt.rules import adam, rule
from memopt.subspaces import as_matrix, haar, wavelet

CHOICES = {
    "axis": ("last", "first", "cheapest"),
    "details": ("official", "safe"),
    "selection": ("approximation", "largest"),
}
NO_ACCUMULATION = (
    "only rule='adam' with selection='approximation' can; the others normalise by the whole "
    "gradient, and holding it is ordinary accumulation in .grad"
)


def check(group: dict[str, Any]) -> None:
    """Raises for a value out of range or a combination that has no meaning."""
    whole(group, "level", least=0, most=haar.MAX_LEVEL)
    positive(group, "scale")
    whole(group, "selection_interval", least=1)
    wavelet.transform(group["wavelet"], group["level"])
    for key, known in CHOICES.items():
        if group[key] not in known:
            raise unknown(key, group[key], known)
    limited = rule(group["rule"]).limited
    if group["details"] == "safe" and not limited:
        raise UnsupportedCombination(
            f"details='safe' undoes Adam's bias correction; rule={group['rule']!r} has none. "
            "Use rule='adam' or 'adam_mini', or details='official'."
        )
    if group["selection"] == "largest" and group["rule"] != "adam":
        raise UnsupportedCombination("selection='largest' is defined for rule='adam' only")
    for key in ("norm_growth_limit", "detail_clip", "share"):
        if group[key] is not None:
            positive(group, key)
    if group["share"] is not None and group["share"] > 1:
        raise ValueError(f"share must be at most 1, got {group['share']!r}")


def gamma(group: dict[str, Any]) -> float | None:
    """The limiter's gamma; None where it is off or the rule bounds its own update."""
    return group["norm_growth_limit"] if rule(group["rule"]).limited else None


def oriented(grad: Tensor, group: dict[str, Any]) -> tuple[Tensor, bool]:
    """The gradient as a matrix to be transformed along its rows, and whether it was transposed."""
    matrix = as_matrix(grad)
    transposed = transposes((matrix.shape[0], matrix.shape[1]), group)
    return (matrix.T if transposed else matrix), transposed


def transposes(shape: tuple[int, int], group: dict[str, Any]) -> bool:
    """Whether the transform runs along the first axis."""
    rows, columns = shape
    along_last = rows * haar.approximation_width(columns, group["level"])
    along_first = columns * haar.approximation_width(rows, group["level"])
    return group["axis"] == "first" or (group["axis"] == "cheapest" and along_first < along_last)


def tamed(details: Tensor, step: int, group: dict[str, Any]) -> Tensor:
    """Details bounded and rid of momentum's bias correction (the step size multiplies by it)."""
    unbiased = details * (1 - group["betas"][1] ** step) ** 0.5
    return unbiased.clamp_(-group["detail_clip"], group["detail_clip"]).div_(
        adam.bias_correction(step, group["betas"])
    )
