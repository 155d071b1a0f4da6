"""Muon against ``torch.optim.Muon``, which iterates in bfloat16."""

import pytest
import torch
from torch import nn

from memopt import Muon

RATE, STEPS = 0.02, 5


def trajectory(factory, shape: tuple[int, int]) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    weight = nn.Parameter(torch.randn(shape, generator=draw))
    optimizer = factory([weight])
    for _ in range(STEPS):
        weight.grad = torch.randn(shape, generator=draw)
        optimizer.step()
    return weight.detach()


@pytest.mark.parametrize("adjust_lr_fn", ["original", "match_rms_adamw"])
@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (17, 17)])
def test_trajectory(shape, nesterov, adjust_lr_fn) -> None:
    options = {"lr": RATE, "weight_decay": 0.1, "nesterov": nesterov, "adjust_lr_fn": adjust_lr_fn}
    expected = trajectory(lambda params: torch.optim.Muon(params, **options), shape)
    got = trajectory(lambda params: Muon(params, precision="bfloat16", **options), shape)
    # the same bfloat16 iteration; then one float32 rounding of weights of size one a step
    torch.testing.assert_close(got, expected, rtol=0, atol=STEPS * 2.4e-7)
    # in float32 they differ by bfloat16's rounding of the iteration: some percent of each step
    precise = trajectory(lambda params: Muon(params, **options), shape)
    start = trajectory(lambda params: Muon(params, **{**options, "lr": 0.0}), shape)
    difference = (precise - expected).norm() / (expected - start).norm()
    assert 0 < float(difference) < 0.05
