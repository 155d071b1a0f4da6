"""Coefficients that arrive in parts: AdamA's second moment for rule adam, a held sum for others."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from memopt.rules import adam
from memopt.rules.base import Direction, rule


def fold(
    coefficients: Tensor, state: dict[str, Any], group: dict[str, Any], *, first: bool
) -> None:
    """Adds the coefficients of one micro-gradient; the ``first`` of a mini-batch opens it.

    Rule adam puts them into its moments, ``m + (1-b1) R_i`` and ``v + (1-b2) R_i*R_i``. The other
    rules normalise by the whole of ``R = sum_i R_i``, so the sum is kept, as ``held``, until
    `settled`.
    """
    if group.get("rule", "adam") == "adam":
        adam.fold(coefficients, state, group["betas"], first=first)
    else:
        state["held"] = coefficients if first else state["held"].add_(coefficients)


def settled(state: dict[str, Any], group: dict[str, Any]) -> Direction:
    """The rule's answer for all coefficients of the mini-batch."""
    if group.get("rule", "adam") == "adam":
        return adam.settled(None, state, group)
    return rule(group["rule"]).direction(state.pop("held"), state, group)
