"""SGD, with or without momentum: the method with no state (Sutskever et al., ICML 2013)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Unpack

import torch
from torch import Tensor

from memopt.optimizers.uniform import Stored, StoredCommon
from memopt.states import Buffer, load, store


class SGD(Stored):
    """``b <- mu b + g``; ``theta <- theta - lr b``, or ``- lr (g + mu b)`` (Nesterov).

    As ``torch.optim.SGD``, but the weight decay is decoupled (the same thing without momentum).

    State per weight: none, or one momentum.

    Args:
        params: parameters, named parameters, or groups; every parameter is treated.
        lr: learning rate.
        momentum: mu; 0 keeps nothing.
        nesterov: looks one step ahead; needs a momentum.
        **common: see `memopt.optimizers.uniform.StoredCommon`.
    """

    elementwise = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        **common: Unpack[StoredCommon],
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "nesterov": nesterov}, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the momentum beside the common arguments."""
        super().validate(group)
        momentum = group["momentum"]
        if isinstance(momentum, bool) or not (
            isinstance(momentum, int | float) and 0 <= momentum < 1
        ):
            raise ValueError(f"momentum must be a number in [0, 1), got {momentum!r}")
        if group["nesterov"] and not momentum:
            raise ValueError("nesterov=True needs a momentum above zero")

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """The momentum, where there is one."""
        return {"momentum_buffer": Buffer(shape)} if group["momentum"] else {}

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """Plain momentum is a sum of gradients, so that micro-gradients can enter one by one."""
        if not group["momentum"]:
            return "without momentum it has no state that could take a micro-gradient"
        if group["nesterov"]:
            return "Nesterov's step needs the gradient of the whole mini-batch beside the momentum"
        if group["storage"] != "float32":
            return f"each micro-gradient would be rounded to {group['storage']} as it is added"
        return None

    def accumulate(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
        *,
        first: bool,
    ) -> None:
        """``b <- mu b`` once a mini-batch, ``b <- b + g_i`` for each micro-gradient."""
        buffer = load(state, "momentum_buffer")
        if first:
            buffer.mul_(group["momentum"])
        store(state, "momentum_buffer", buffer.add_(grad))

    def finish(self, state: dict[str, Any], group: dict[str, Any], param: Tensor) -> Tensor:
        """``lr b``."""
        return load(state, "momentum_buffer") * group["lr"]

    def update(
        self, grad: Tensor, state: dict[str, Any], group: dict[str, Any], param: Tensor
    ) -> Tensor:
        """The step on one gradient."""
        if not group["momentum"]:
            return grad * group["lr"]
        self.accumulate(grad, state, group, param, first=True)
        if not group["nesterov"]:
            return self.finish(state, group, param)
        buffer = load(state, "momentum_buffer")
        return torch.add(grad, buffer, alpha=group["momentum"]).mul_(group["lr"])
