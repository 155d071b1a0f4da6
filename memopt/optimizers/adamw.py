"""AdamW, torch's own arithmetic, under memopt's laws (Loshchilov & Hutter, arXiv 1711.05101)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from memopt.errors import UnsupportedCombination
from memopt.optimizers import adama
from memopt.optimizers.base import MemoptOptimizer
from memopt.optimizers.uniform import Uniform
from memopt.rules.adam import corrected
from memopt.states import Buffer

# keys of a group that torch's functional form takes under the same name
_OPTIONS = (
    "amsgrad", "lr", "weight_decay", "eps", "maximize", "foreach", "capturable", "differentiable",
    "fused", "decoupled_weight_decay",
)  # fmt: skip


class AdamW(torch.optim.AdamW, Uniform):
    """``torch.optim.AdamW``, bit for bit: the baseline.

    memopt adds named errors, the non-finite policy, and the declaration of its state. What torch
    decides stays torch's: moments in the weight's dtype, arithmetic of its kernels, rounding to
    nearest (so there is no ``rounding`` argument), checkpoints of ``torch.optim.AdamW`` load.

    State per weight: two moments in the weight's dtype (three with ``amsgrad``), and one float32
    step count a parameter.

    Args:
        params: parameters, named parameters, or groups (best: `memopt.param_groups`); every
            parameter is treated.
        lr, betas, eps, weight_decay, amsgrad, maximize: torch's.
        foreach, fused, capturable: which of torch's kernels; torch chooses by default.
        nonfinite: see `memopt.optimizers.arguments.Common`. ``"ignore"`` for CUDA graphs.

    Raises:
        ValueError: a bad hyperparameter or an unknown group key.
        UnsupportedCombination: ``fused`` with ``foreach``, or a group with ``differentiable``.
    """

    common_defaults = {"nonfinite": "raise"}

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        fused: bool | None = None,
        nonfinite: str = "raise",
    ) -> None:
        self.common_defaults = {"nonfinite": nonfinite}  # torch's constructor hands on its own only
        super().__init__(
            params, lr, betas, eps, weight_decay, amsgrad,
            maximize=maximize, foreach=foreach, capturable=capturable, fused=fused,
        )  # fmt: skip

    def validate(self, group: dict[str, Any]) -> None:
        """Checks the choice of kernels beside the common arguments."""
        super().validate(group)
        if group["fused"] and group["foreach"]:
            raise UnsupportedCombination("fused and foreach are two ways to step: choose one")
        if group["differentiable"]:
            raise UnsupportedCombination(
                "step() runs without autograd; for differentiable=True use torch.optim.AdamW"
            )

    def buffers(self, shape: tuple[int, ...], group: dict[str, Any]) -> dict[str, Buffer]:
        """Both moments in shape and dtype of the weight, the largest second one under amsgrad."""
        moments = ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else []))
        return {key: Buffer(shape, "weight") for key in moments} | {"step": Buffer((), "count")}

    def state_of(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The parameter's state, allocated by torch at its first gradient."""
        if not self.state[param]:
            self._init_group({**group, "params": [param]}, *([] for _ in range(6)))
        return self.state[param]

    def no_accumulation(self, group: dict[str, Any]) -> str | None:
        """AdamA's timing on torch's state, unless that is too coarse or its step count on a GPU."""
        if any(param.dtype.itemsize < 4 for param in group["params"]):
            return "moments have the weight's narrow dtype, where N small additions round away"
        return "capturable=True keeps the step count on the device" if group["capturable"] else None

    def accumulate(
        self,
        grad: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        param: Tensor,
        *,
        first: bool,
    ) -> None:
        """As `memopt.AdamA` does; with one micro-batch ``torch.optim.AdamW(foreach=False)``."""
        adama.fold(grad, state, group["betas"], first=first)

    def finish(self, state: dict[str, Any], group: dict[str, Any], param: Tensor) -> Tensor:
        """The step from the moments; under amsgrad from the largest v of all mini-batches."""
        square = state["exp_avg_sq"]
        if group["amsgrad"]:
            square = torch.maximum(state["max_exp_avg_sq"], square, out=state["max_exp_avg_sq"])
        return corrected(state["exp_avg"], square, float(state["step"]), group)

    step = MemoptOptimizer.step

    def check_finite(self, work: list[tuple[Tensor, dict[str, Any]]]) -> bool:
        """As `MemoptOptimizer`'s, unless a GradScaler leaves its overflows to the fused kernel."""
        return hasattr(self, "found_inf") or super().check_finite(work)

    def step_all(self, work: list[tuple[Tensor, dict[str, Any]]]) -> None:
        """A group at a time, so that torch can fuse."""
        self._accelerator_graph_capture_health_check()
        for group in self.param_groups:
            self._step_some([param for param, its in work if its is group], group)

    def step_parameter(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """One update of one parameter from ``param.grad``, for `memopt.update_in_backward`."""
        self._step_some([param], group)

    def _step_some(self, params: list[Tensor], group: dict[str, Any]) -> None:
        lists: Any = [[] for _ in range(6)]  # params, grads, moments (3), steps
        options: dict[str, Any] = {key: group[key] for key in _OPTIONS}
        options["has_complex"] = self._init_group({**group, "params": params}, *lists)
        options["beta1"], options["beta2"] = group["betas"]
        for key in ("grad_scale", "found_inf"):  # a GradScaler hands them to fused kernels
            options[key] = getattr(self, key, None)
        adam(*lists, **options)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `MemoptOptimizer`'s; a state_dict of ``torch.optim.AdamW`` gets memopt's own keys."""
        own = {key: self.defaults[key] for key in ("nonfinite", "skipped_steps", "treated")}
        groups = [{**own, **group} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups})
