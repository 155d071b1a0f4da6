"""transformers' Trainer, where a run needs it otherwise: evaluation, gradient norm, checkpoints.

Checkpoints hold whole weights and states, whatever is divided among processes, so that any number
of them can go on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, Trainer
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from experiments import processes, sharded
from experiments.clock import Clock
from experiments.scores import MAIN, Metrics, final
from memopt.distributed import full_state_dict
from memopt.states import sharding


class RunTrainer(Trainer):
    """Trainer with our evaluation, whole checkpoints, and the norm of gradients that are gone."""

    held_out: Callable[[PreTrainedModel], dict[str, Metrics]]
    timing: Any = None
    clock: Clock

    def evaluate(self, *_: Any, **__: Any) -> dict[str, Metrics]:
        """Metrics over every held-out part."""
        with self.clock.paused("outside"):
            found = processes.from_first(self.held_out(self.model))
            sharded.settle(self.model)
        logged = {**found[MAIN], **final({k: v for k, v in found.items() if k != MAIN})}
        self.log({f"eval_{key}": value for key, value in logged.items()})  # for trackers
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, found)
        return found

    def _save_checkpoint(self, *given: Any, **named: Any) -> None:
        with self.clock.paused("outside"):
            super()._save_checkpoint(*given, **named)

    def _get_grad_norm(self, model: Any, grad_norm: Any = None) -> Any:
        if self.timing is not None:
            return self.timing.last_grad_norm
        return sharding.whole(super()._get_grad_norm(model, grad_norm))

    def leave_model_alone(self) -> None:
        """Has accelerate see to autocast only: the model is placed, and gradients are averaged."""
        prepare = self.accelerator.prepare_model
        self.accelerator.prepare_model = lambda model, **_: prepare(
            model, device_placement=False, evaluation_mode=True
        )

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        if not sharded.is_divided(model):  # whose parameters hooks would keep from being moved
            super()._move_model_to_device(model, device)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As Trainer's, with whole weights."""
        if not sharded.is_divided(self.model):
            super().save_model(output_dir, _internal_call)
            return
        weights = sharded.whole_weights(self.model)
        if self.args.should_save:
            self._save(output_dir, state_dict=weights)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if processes.count() == 1:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        state = full_state_dict(self.optimizer.optimizer)  # accelerate wraps it
        if self.args.should_save:
            torch.save(state, Path(output_dir) / OPTIMIZER_NAME)
            torch.save(self.lr_scheduler.state_dict(), Path(output_dir) / SCHEDULER_NAME)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if sharded.is_divided(self.model):
            sharded.fill(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
