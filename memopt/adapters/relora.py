"""ReLoRA: high-rank training through low-rank updates (Lialin et al., arXiv 2307.05695)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from memopt.adapters import layers
from memopt.adapters.lora import Adapted, AdapterCommon
from memopt.errors import unknown
from memopt.optimizers.arguments import whole
from memopt.params import Targets
from memopt.states import load, store

RESETS = ("full", "magnitude")
PRUNED = 0.9  # share of each moment that reset="magnitude" sets to zero


class ReLoRA(Adapted):
    """LoRA whose adapters are merged into the weights every T updates and start anew.

    After updates T, 2T, ...: ``W <- W + (alpha / r) B A``, A drawn anew, B zero, the adapters'
    moments reset; then the learning rate of all parameters rises from zero within
    ``restart_warmup`` updates to what the schedule says (``lr`` of the groups is left alone). The
    paper's full-rank warm start is a training before: create this for a model that AdamW trained.

    Args:
        model: see `memopt.LoRA`.
        lr: learning rate; the paper uses about twice that of full-rank training.
        update_interval: T, updates between merges.
        restart_warmup: updates of the warm-up after a merge; 0 for none.
        reset: of the adapters' moments at a merge: ``"full"`` sets them and their step count to
            zero; ``"magnitude"`` keeps the largest tenth of each and the count, as the official
            configurations do.
        targets: which layers get adapters, as in `memopt.param_groups`.
        **common: see `AdapterCommon`; A is drawn from ``adapter_seed``, name and number of merges.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float = 1e-3,
        *,
        update_interval: int = 5000,
        restart_warmup: int = 100,
        reset: str = "full",
        targets: Targets = "auto",
        **common: Unpack[AdapterCommon],
    ) -> None:
        defaults = {
            "lr": lr,
            "update_interval": update_interval,
            "restart_warmup": restart_warmup,
            "reset": reset,
            "updates": 0,  # done so far; in the groups, so that checkpoints carry it
        }
        super().__init__(model, targets, defaults, **common)

    def validate(self, group: dict[str, Any]) -> None:
        """Checks interval, warm-up and reset beside the common arguments."""
        super().validate(group)
        whole(group, "update_interval", least=1)
        whole(group, "restart_warmup", least=0)
        if group["reset"] not in RESETS:
            raise unknown("reset", group["reset"], RESETS)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update, as everywhere; every T-th is followed by a merge."""
        skipped = self.param_groups[0]["skipped_steps"]
        loss = super().step(closure)
        if self.param_groups[0]["skipped_steps"] == skipped:
            for group in self.param_groups:
                group["updates"] += 1
            first = self.param_groups[0]  # adapters are merged all at once: one interval for all
            cycle, position = divmod(first["updates"], first["update_interval"])
            if position == 0:
                self._merge(cycle)
        return loss

    def step_parameter(self, param: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        """One update of one parameter, at the rate of the warm restart."""
        super().step_parameter(param, grad, group | {"lr": group["lr"] * _warmth(group)})

    def _merge(self, cycle: int) -> None:
        for name, layer in self.adapters:
            layers.fold(layer)
            self._start(name, layer, cycle)
        for group in self.param_groups:
            for param in group["params"]:
                if self.treats(param, group) and self.state[param]:
                    _reset(self.state[param], group["reset"])


def _warmth(group: dict[str, Any]) -> float:
    """Factor of the learning rate: 0, 1/w, 2/w, ... in the first w updates after a merge."""
    cycle, position = divmod(group["updates"], group["update_interval"])
    if cycle == 0 or position >= group["restart_warmup"]:
        return 1.0
    return float(position / group["restart_warmup"])


def _reset(state: dict[str, Any], how: str) -> None:
    """Forgets the moments of one adapter weight, or all but the largest."""
    for key in ("exp_avg", "exp_avg_sq"):
        moment = load(state, key)
        if how == "full":
            moment.zero_()
        else:
            flat = moment.view(-1)
            smallest = round(PRUNED * flat.numel())
            flat[flat.abs().argsort(stable=True)[:smallest]] = 0
        store(state, key, moment)
    if how == "full":
        state["step"] = 0
