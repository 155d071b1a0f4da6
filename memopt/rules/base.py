"""What a rule is. A projected method asks it for the state it keeps and for a `Direction`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

from torch import Tensor

from memopt.errors import unknown
from memopt.states import Buffer

RULES = ("adam", "adafactor", "adam_mini", "muon")


@dataclass(frozen=True)
class Direction:
    """A rule's answer for one gradient in the coordinates where the moments live.

    Attributes:
        value: the direction, in the shape of the coefficients.
        divisor: what parts without moments (GWT's details) are divided by; broadcastable to
            ``value``.
        step_size: scalar on the whole update, learning rate and bias correction included.
        finish: applied to the update once it is back in the weight's coordinates.
    """

    value: Tensor
    divisor: Tensor
    step_size: Any
    finish: Callable[[Tensor], Tensor] | None = None


class Rule(Protocol):
    """A module of `memopt.rules`.

    Attributes:
        limited: whether the norm-growth limiter of GWT applies (rules that bound their own update
            have none).
        by_rows: whether the direction of a row depends on that row alone.
    """

    limited: bool
    by_rows: bool

    def buffers(self, shape: tuple[int, ...]) -> dict[str, Buffer]:
        """State for coefficients of this shape."""

    def direction(
        self, coefficients: Tensor, state: dict[str, Any], group: dict[str, Any]
    ) -> Direction:
        """Updates the moments with new coefficients and returns the direction."""


def rule(name: str) -> Rule:
    """The rule of this name.

    Raises:
        ValueError: unknown rule, with the nearest.
    """
    if name not in RULES:
        raise unknown("rule", name, RULES)
    return cast(Rule, import_module(f"memopt.rules.{name}"))
