"""AdamW, torch's own, with memopt's declaration of its state (arXiv 1711.05101)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from memopt.states import Buffer

# keys of a group that torch's functional form takes under the same name
_OPTIONS = (
    "amsgrad", "lr", "weight_decay", "eps", "maximize", "foreach", "capturable", "differentiable",
    "fused", "decoupled_weight_decay",
)  # fmt: skip


class AdamW(torch.optim.AdamW):
    """``torch.optim.AdamW``: the baseline. Arguments, arithmetic and checkpoints are torch's.

    State per weight: two moments in the weight's dtype, and one float32 step count a parameter.
    """

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """First and second moment in the shape of the weight, for `memopt.accounting`."""
        return {"exp_avg": Buffer(shape), "exp_avg_sq": Buffer(shape, signed=False)}

    def step_parameter(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """One update of one parameter from ``param.grad``, for `memopt.update_in_backward`."""
        lists: Any = [[] for _ in range(6)]  # params, grads, moments (3), steps
        options: dict[str, Any] = {key: group[key] for key in _OPTIONS}
        options["has_complex"] = self._init_group({**group, "params": [param]}, *lists)
        options["beta1"], options["beta2"] = group["betas"]
        adam(*lists, **options)
