"""Learning rates that the paper of the "exact" constant step size compares (arXiv 2309.08339).

Beside Trainer's schedules: ``step``, ``exponential``, ``inverse_time``, ``inverse_sqrt``, which
change from epoch to epoch, and ``exact``, constant at ``lr`` times what
`memopt.step_size.exact_constant` measures before training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch.optim.lr_scheduler import LambdaLR

from experiments.errors import UserError
from experiments.spec import TrainSpec

# Factor on the rate in epoch e (from 0) of E. The paper's forms, by its code; where its step
# schedule falls, and by how much, was not found: a tenth after half and after three quarters.
BY_EPOCH: dict[str, Callable[[int, int], float]] = {
    "step": lambda e, total: 0.1 ** ((e >= total / 2) + (e >= 3 * total / 4)),
    "exponential": lambda e, _: math.exp(-0.01 * e),
    "inverse_time": lambda e, _: 1 / (1 + 0.01 * e),
    "inverse_sqrt": lambda e, _: 1 / math.sqrt(e + 1),
}
STEP_SIZE = "exact_step_size"  # its name among a run's final values


def scheduler(
    train: TrainSpec, rows: int, references: Mapping[str, float], optimizer: torch.optim.Optimizer
) -> LambdaLR | None:
    """The run's schedule if it is one of this file; None for one of Trainer's.

    Args:
        train: with the schedule.
        rows: of an epoch.
        references: of the task; `STEP_SIZE` among them for ``exact``.
        optimizer: with the run's rate.

    Raises:
        UserError: ``exact`` for a task that has measured nothing.
    """
    name = train.schedule.name
    if name == "exact":
        if STEP_SIZE not in references:
            raise UserError("train.schedule: 'exact' is measured for vision runs only")
        measured = references[STEP_SIZE]
        return LambdaLR(optimizer, lambda _: measured)
    if name not in BY_EPOCH:
        return None
    epoch = max(rows // train.batch_size, 1)
    total = math.ceil(train.steps / epoch)
    return LambdaLR(optimizer, lambda step: BY_EPOCH[name](step // epoch, total))
