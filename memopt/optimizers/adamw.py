"""AdamW, torch's own, with memopt's declaration of its state (arXiv 1711.05101)."""

from __future__ import annotations

from typing import Any

import torch

from memopt.states import Buffer


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW``: the baseline. Arguments, arithmetic and checkpoints are torch's.

    State per weight: two moments in the weight's dtype, and one float32 step count a parameter.
    """

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """First and second moment in the shape of the weight, for `memopt.accounting`."""
        return {"exp_avg": Buffer(shape), "exp_avg_sq": Buffer(shape, signed=False)}
