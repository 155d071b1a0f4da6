"""AdamA's step over Adam's, as the gradient's signal-to-noise ratio decides it.

Ours, by algebra. Rows of a batch are independent, with mean ``mu`` and variance ``s^2`` of a
weight's gradient. For the gradients ``g_i`` of N micro-batches (of the loss divided by N) of the
same B rows, ``E (sum_i g_i)^2 = mu^2 + s^2/B``, which Adam's second moment takes, and
``E sum_i g_i^2 = mu^2/N + s^2/B``, which AdamA's takes. The first moments are equal, so with the
signal-to-noise ratio of the batch's gradient, ``rho = mu^2 / (s^2/B)``, AdamA's step is
``sqrt((1 + rho) / (1 + rho/N))`` times Adam's: 1 for pure noise, ``sqrt(N)`` without noise, never
more. Both expectations are linear, so it holds for sums over weights and updates, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def step_ratio(snr: Any, count: Any) -> Any:
    """AdamA's step over Adam's, ``sqrt((1 + rho) / (1 + rho/N))``, see the module.

    Args:
        snr: rho, signal-to-noise ratio of the whole batch's gradient (power, from 0); numbers or
            arrays.
        count: N, micro-batches of the batch.
    """
    return np.sqrt((1 + snr) / (1 + snr / count))


def signal_to_noise(whole: Any, rows: Any, count: int) -> Any:
    """The rho of two second moments: ``N (v_1 - v_N) / (N v_N - v_1)``.

    Args:
        whole: v_1, squares of the batch's gradient.
        rows: v_N, sums of squares of the gradients of N parts of it (best: of its rows).
        count: N, at least 2.

    Returns:
        An unbiased signal over an unbiased noise: slightly below 0 where there is hardly a signal,
        infinite without noise, NaN without gradient.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(count * (whole - rows), count * rows - whole)
