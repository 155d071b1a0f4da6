"""The ordinary loop of one training step: what a trace follows and what a GPU is measured on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Loss = Callable[[nn.Module, Any], Tensor]
# of weights, gradients and activations: what the optimizers of this library run on
RUN_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def one_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Sequence[Any],
    loss: Loss,
    enter: Callable[[str], None] = lambda phase: None,
) -> None:
    """Forward and backward of every micro-batch, then the update; it fits every timing.

    Args:
        model: what is trained.
        optimizer: its optimizer.
        batches: the micro-batches; each one's loss counts for its share.
        loss: from model and micro-batch.
        enter: told ``"forward"``, ``"backward"`` or ``"step"`` before each of them.
    """
    for batch in batches:
        enter("forward")
        value = loss(model, batch) / len(batches)
        enter("backward")
        value.backward()
        del value
    enter("step")
    optimizer.step()
    optimizer.zero_grad()


def output_loss(model: nn.Module, batch: Any) -> Tensor:
    """The model's output where it is a scalar, or its ``.loss``.

    Raises:
        ValueError: there is neither.
    """
    output = model(**batch)
    value = output if isinstance(output, Tensor) else output.loss
    if not isinstance(value, Tensor) or value.ndim:
        raise ValueError(
            f"the output of {type(model).__name__} is no scalar and has no scalar .loss (are there "
            "labels in the batch?); pass loss=function of model and batch"
        )
    return value
