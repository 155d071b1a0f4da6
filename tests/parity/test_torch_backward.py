"""AdamA (one micro-batch) is torch's AdamW, LOMO its SGD, AdaLomo transformers' Adafactor."""

import pytest
import torch
from torch import nn

import memopt

SHAPES = [(), (7,), (6, 5), (3, 4, 5), (2, 3, 4, 3)]


def weights(dtype: torch.dtype) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(1)
    each = [nn.Parameter(torch.randn(s, dtype=dtype, generator=draw)) for s in SHAPES]
    each[1].data.zero_()  # a bias: AdaLomo's smallest rate
    return each


def train(optimizer: torch.optim.Optimizer, params: list[nn.Parameter], steps: int) -> list:
    draw = torch.Generator().manual_seed(2)
    for step in range(steps):
        target = [torch.randn(p.shape, dtype=p.dtype, generator=draw) for p in params]
        loss = sum(
            ((p - t) ** 2).sum() + (p * t).sum() for p, t in zip(params, target, strict=True)
        )
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 + step % 3)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [param.detach() for param in params]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adama_is_adamw_bit_for_bit(dtype, decay) -> None:
    params, twins = weights(dtype), weights(dtype)
    ours = train(memopt.AdamA(params, lr=0.01, weight_decay=decay), params, 100)
    adamw = torch.optim.AdamW(twins, lr=0.01, weight_decay=decay, foreach=False)
    theirs = train(adamw, twins, 100)
    assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lomo_is_sgd(decay) -> None:
    params, twins = weights(torch.float32), weights(torch.float32)
    ours = train(memopt.LOMO(params, lr=0.01, weight_decay=decay), params, 20)
    sgd = torch.optim.SGD(twins, lr=0.01, weight_decay=decay, foreach=False)
    theirs = train(sgd, twins, 20)
    # lr g, rounded before it is subtracted, and decay as a factor: a rounding or two a step
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_adalomo_is_adafactor(dtype, decay) -> None:
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    params, twins = weights(dtype), weights(dtype)
    ours = train(memopt.AdaLomo(params, lr=0.01, weight_decay=decay), params, 50)
    oracle = adafactor(
        twins,
        lr=0.01,
        scale_parameter=True,
        relative_step=False,
        warmup_init=False,
        beta1=None,
        weight_decay=decay,
    )
    theirs = train(oracle, twins, 50)
    rounding = 50 * torch.finfo(dtype).eps  # one a step
    torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding)


def test_adalomo_in_bfloat16_rounds_once() -> None:
    """Float32 arithmetic, one rounding: as the oracle does it, to one step of bfloat16."""
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    params, twins = weights(torch.bfloat16), weights(torch.bfloat16)
    ours = train(memopt.AdaLomo(params, lr=0.01), params, 5)
    oracle = adafactor(twins, lr=0.01, scale_parameter=True, relative_step=False)
    theirs = train(oracle, twins, 5)
    torch.testing.assert_close(ours, theirs, rtol=2**-8, atol=2**-10)
