"""One whole checkpoint of an optimizer whose state lies on several processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed

from memopt.states import sharding


def full_state_dict(optimizer: torch.optim.Optimizer, to: int = 0) -> dict[str, Any]:
    """The ``state_dict`` that one process alone would have, gathered to one process.

    For weights sharded by FSDP2 (any optimizer of memopt, and torch's), for
    `memopt.ZeRO1AdamW`, and, as it is, for state that every process holds. It loads by
    ``load_state_dict`` on one process and, read by each of them, on any number. All processes
    must call it; one tensor at a time is whole on every process.

    Args:
        optimizer: after a step.
        to: rank that gets the state, in CPU memory.

    Returns:
        The state dict on ``to``; an empty one on the other processes.
    """
    mine = distributed.get_rank() == to
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(to)
        return optimizer.state_dict() if mine else {}
    found = optimizer.state_dict()
    state: dict[Any, dict[str, Any]] = {}
    for index, kept in found["state"].items():
        state[index] = {}
        for key, value in kept.items():
            value = sharding.whole(value)  # all processes take part
            if mine:
                state[index][key] = value.cpu() if isinstance(value, Tensor) else value
    return {**found, "state": state} if mine else {}
