"""Lion, SGD and Adafactor against the libraries that the field uses."""

import pytest
import torch
from torch import nn

import memopt

SHAPES = [(), (7,), (6, 5), (3, 4, 5), (2, 3, 4, 3)]


def weights(dtype: torch.dtype) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(s, dtype=dtype, generator=draw)) for s in SHAPES]


def train(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int) -> list:
    draw = torch.Generator().manual_seed(2)
    for _ in range(steps):
        for param in params:
            noise = torch.randn(param.shape, dtype=param.dtype, generator=draw)
            param.grad = (0.3 * param + noise).detach()
        optimizer.step()
    return [param.detach() for param in params]


def pair(dtype: torch.dtype, ours, theirs, steps: int = 40) -> tuple[list, list]:
    first, second = weights(dtype), weights(dtype)
    return train(ours(first), first, steps), train(theirs(second), second, steps)


every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@every_dtype
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion_is_pytorch_optimizers(dtype, decay) -> None:
    oracle = pytest.importorskip("pytorch_optimizer").Lion
    arguments = {"lr": 0.01, "betas": (0.95, 0.98), "weight_decay": decay}
    ours, theirs = pair(
        dtype, lambda p: memopt.Lion(p, **arguments), lambda p: oracle(p, **arguments)
    )
    rounding = 40 * torch.finfo(dtype).eps  # one a step
    torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding)


@every_dtype
@pytest.mark.parametrize(
    "arguments", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}], ids=str
)
def test_sgd_is_torchs(dtype, arguments) -> None:
    ours, theirs = pair(
        dtype,
        lambda p: memopt.SGD(p, lr=0.01, **arguments),
        lambda p: torch.optim.SGD(p, lr=0.01, **arguments),
    )
    rounding = 80 * torch.finfo(dtype).eps  # lr g is rounded before it is subtracted
    torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding)


ADAFACTOR = {
    "paper": ({}, {}),
    "warm-up": ({"warmup_init": True}, {"warmup_init": True}),
    "rate": ({"lr": 0.05}, {"lr": 0.05, "relative_step": False}),
    "GaLore's": (
        {"lr": 0.05, "scale_parameter": False, "beta1": 0.9},
        {"lr": 0.05, "scale_parameter": False, "beta1": 0.9, "relative_step": False},
    ),
    "momentum, decay": ({"beta1": 0.9, "weight_decay": 0.1}, {"beta1": 0.9, "weight_decay": 0.1}),
    "constants": (
        {"eps": (1e-6, 1e-2), "clip_threshold": 0.5, "decay_rate": -0.5},
        {"eps": (1e-6, 1e-2), "clip_threshold": 0.5, "decay_rate": -0.5},
    ),
}


@every_dtype
@pytest.mark.parametrize("own, its", ADAFACTOR.values(), ids=ADAFACTOR)
def test_adafactor_is_transformers(dtype, own, its) -> None:
    oracle = pytest.importorskip("transformers.optimization").Adafactor
    ours, theirs = pair(dtype, lambda p: memopt.Adafactor(p, **own), lambda p: oracle(p, **its))
    rounding = 40 * torch.finfo(dtype).eps  # one a step
    torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding)
