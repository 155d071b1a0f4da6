"""What a step needs for a moment belongs to one parameter, not to the model."""

from typing import Any

import pytest
import torch
from torch import nn

from memopt.accounting.live import transient_of

SIDES = (64, 48)
PARAMETER_BYTES = 64 * 48 * 4


def transient(subject: Any, count: int) -> int:
    """Bytes that the second step of ``count`` equal parameters needs beside the state."""
    model = nn.Sequential(*(nn.Linear(*SIDES, bias=False) for _ in range(count)))
    training = subject.start(model)
    needed = 0
    for _ in range(2):
        for param in model.parameters():
            if param.requires_grad:
                param.grad = torch.randn_like(param)
        needed = transient_of(training.optimizer)
    return needed


@pytest.mark.law("transient")
@pytest.mark.variants
def test_step_needs_room_for_one_parameter_only(subject) -> None:
    few, many = transient(subject, 2), transient(subject, 12)
    # a refresh makes QR and SVD factors, the db2 transform its bands: up to ten times one weight
    assert 0 < many <= 10 * PARAMETER_BYTES
    # the finite check keeps one number a parameter
    assert many - few <= 64 * 10
