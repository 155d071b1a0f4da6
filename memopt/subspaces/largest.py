"""The largest coefficients by magnitude: what summaries of GWT describe, *not* GWT.

A fixed share of all wavelet coefficients, at positions chosen anew every so many steps, has
moments; all other coefficients are dropped from the update. Here to be measured against GWT.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from memopt.rules import Direction, adam
from memopt.states import Buffer, load, store
from memopt.subspaces import haar
from memopt.subspaces.wavelet import Haar, Wavelet


def buffers(rows: int, columns: int, group: dict[str, Any]) -> dict[str, Buffer]:
    """Positions (int32) and both moments of the kept coefficients."""
    width = haar.approximation_width(columns, group["level"]) * 2 ** group["level"]
    share = group["share"] if group["share"] is not None else 2 ** -group["level"]
    kept = min(max(math.ceil(share * rows * width), 1), rows * width)
    return {"positions": Buffer((kept,), kind="index"), **adam.buffers((kept,))}


def direction(
    matrix: Tensor, transform: Haar | Wavelet, state: dict[str, Any], group: dict[str, Any]
) -> Direction:
    """Adam on the kept coefficients, back in the coordinates of the matrix.

    The norm of ``value`` is that of the kept directions, the transform being orthonormal (for
    biorthogonal wavelets nearly so).
    """
    band, details = transform.forward(matrix)
    coefficients = torch.cat((band, *details), dim=1)
    if (state["step"] - 1) % group["selection_interval"] == 0:
        _choose(coefficients, state)
    positions = state["positions"].long()
    answer = adam.direction(coefficients.flatten()[positions], state, group)
    kept = torch.zeros_like(coefficients).flatten().index_copy_(0, positions, answer.value)
    bands = kept.view_as(coefficients).split([band.shape[1], *(d.shape[1] for d in details)], 1)
    value = transform.inverse(bands[0], list(bands[1:]), matrix.shape[1])
    return Direction(value, answer.divisor, answer.step_size)


def _choose(coefficients: Tensor, state: dict[str, Any]) -> None:
    """New positions; a coefficient that stays keeps its moments, a new one starts at zero."""
    chosen = coefficients.flatten().abs().topk(state["positions"].numel()).indices.sort().values
    old = state["positions"].long()
    for key in ("exp_avg", "exp_avg_sq"):
        dense = torch.zeros_like(coefficients).flatten()
        if state["step"] > 1:
            dense.index_copy_(0, old, load(state, key))
        store(state, key, dense[chosen])
    state["positions"].copy_(chosen)
