"""Learning rates that the paper of the "exact" constant step size compares (arXiv 2309.08339).

Beside Trainer's schedules: ``step``, ``exponential``, ``inverse_time``, ``inverse_sqrt``, which
change from epoch to epoch, and ``exact``, constant at ``lr`` times what
`memopt.step_size.exact_constant` measures before training.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from experiments import networks
from experiments.errors import UserError
from experiments.spec import RunSpec
from memopt.step_size import exact_constant

if TYPE_CHECKING:
    from experiments.training import Task

# Factor on the rate in epoch e (from 0) of E. The paper's forms, by its code; where its step
# schedule falls, and by how much, was not found: a tenth after half and after three quarters.
BY_EPOCH: dict[str, Callable[[int, int], float]] = {
    "step": lambda e, total: 0.1 ** ((e >= total / 2) + (e >= 3 * total / 4)),
    "exponential": lambda e, _: math.exp(-0.01 * e),
    "inverse_time": lambda e, _: 1 / (1 + 0.01 * e),
    "inverse_sqrt": lambda e, _: 1 / math.sqrt(e + 1),
}
STEP_SIZE = "exact_step_size"  # its name among a run's final values
MODELS_MEASURED = 5  # initialisations; the official code takes as many as there are epochs


def scheduler(run: RunSpec, task: Task, optimizer: torch.optim.Optimizer) -> LambdaLR | None:
    """The run's schedule if it is one of this file; None for one of Trainer's.

    Raises:
        UserError: ``exact`` for a task that has measured nothing.
    """
    name = run.train.schedule.name
    if name == "exact":
        if STEP_SIZE not in task.references:
            raise UserError("train.schedule: 'exact' is measured for vision runs only")
        measured = task.references[STEP_SIZE]
        return LambdaLR(optimizer, lambda _: measured)
    if name not in BY_EPOCH:
        return None
    epoch = max(len(task.rows) // run.train.batch_size, 1)
    total = math.ceil(run.train.steps / epoch)
    return LambdaLR(optimizer, lambda step: BY_EPOCH[name](step // epoch, total))


def measured(run: RunSpec, task: Task) -> Task:
    """The task, with the measured step size and its parts where the schedule is ``exact``."""
    if run.train.schedule.name != "exact":
        return task
    size = run.train.batch_size
    starts = range(0, len(task.rows) - size + 1, size)
    rows = [[task.rows[i] for i in range(start, start + size)] for start in starts]
    if not rows:
        raise UserError(f"train.batch_size: {size} is more than the {len(task.rows)} rows")
    found = exact_constant(
        partial(networks.fresh, run.model),
        _loss,
        [task.collate(batch) for batch in rows],
        run.train.steps,
        num_iters=MODELS_MEASURED,
        seed=run.seeds.weights,
    )
    task.references |= {
        STEP_SIZE: found.step_size,
        "smoothness": found.smoothness,
        "initial_loss": found.initial_loss,
    }
    return task


def _loss(model: Any, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss
