"""Low-precision weights: stochastic rounding, and the warning where updates vanish."""

import math
import warnings

import pytest
import torch
from torch import nn

import memopt
from memopt.optimizers import rounding

METHODS = {
    "gwt": (memopt.GWT, {"level": 1}),
    "galore": (memopt.GaLore, {"rank": 4}),
    "coap": (memopt.COAP, {"rank": 4}),
}
every_method = pytest.mark.parametrize("factory, arguments", METHODS.values(), ids=METHODS)


def decay_alone(factory, arguments, steps: int, **options) -> torch.Tensor:
    """Ones in bfloat16 under weight decay of 1e-5 a step and no gradient."""
    weight = nn.Parameter(torch.ones(32, 32, dtype=torch.bfloat16))
    optimizer = factory([weight], lr=1e-3, weight_decay=1e-2, **options, **arguments)
    weight.grad = torch.zeros_like(weight)
    for _ in range(steps):
        optimizer.step()
    return weight.detach().double()


def test_stochastic_rounding_keeps_weight_decay() -> None:
    got = decay_alone(*METHODS["gwt"], steps=1000, rounding="stochastic").mean()
    # Each weight walks in steps of 2^-8 with drift -1e-5: variance 1e-5 * 2^-8 a step, deviation
    # 0.0063 after 1000, and 2e-4 for the mean of 1024. Four of them.
    assert float(got) == pytest.approx((1 - 1e-5) ** 1000, abs=8e-4)


@every_method
def test_nearest_rounding_loses_it_and_says_so_once(factory, arguments) -> None:
    with pytest.warns(UserWarning, match="'group0.param0' rounds to nothing.*'stochastic'") as seen:
        weight = decay_alone(factory, arguments, steps=30)
    assert len(seen) == 1
    assert bool((weight == 1).all())


@every_method
def test_no_warning_where_updates_arrive(factory, arguments) -> None:
    weights = {
        dtype: nn.Parameter(torch.ones(16, 16, dtype=dtype))
        for dtype in (torch.bfloat16, torch.float32)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rate, dtype in ((0.3, torch.bfloat16), (1e-9, torch.float32)):
            weight = weights[dtype]
            optimizer = factory([weight], lr=rate, **arguments)
            for _ in range(20):
                weight.grad = torch.randn(16, 16).to(dtype)
                optimizer.step()


def test_both_neighbours_at_the_right_rate() -> None:
    # 1 + 2^-9 lies a quarter of the way from 1 to 1 + 2^-7
    param = torch.ones(100_000, dtype=torch.bfloat16)
    weight = torch.full((100_000,), 1 + 2**-9)
    rounding.copy_stochastic_(param, weight, name="w", step=1)
    assert set(param.tolist()) == {1.0, 1 + 2**-7}
    # binomial, five standard deviations
    assert float((param > 1).double().mean()) == pytest.approx(0.25, abs=5 * math.sqrt(3 / 16e5))


def test_representable_values_and_signs_stay() -> None:
    exact = torch.tensor([0.0, -0.0, 1.5, -2.0, 2.0**-126, float("inf"), float("nan")])
    param = torch.zeros(7, dtype=torch.bfloat16)
    rounding.copy_stochastic_(param, exact, name="w", step=1)
    assert torch.equal(param[:6].float(), exact[:6]) and param[6].isnan()
    below = torch.full((1000,), -(1 + 2**-9))
    param = torch.zeros(1000, dtype=torch.bfloat16)
    rounding.copy_stochastic_(param, below, name="w", step=1)
    assert set(param.tolist()) == {-1.0, -(1 + 2**-7)}


def test_noise_depends_on_name_and_step_only() -> None:
    weight = torch.rand(1000)
    drawn = []
    for name, step in (("a", 1), ("a", 1), ("b", 1), ("a", 2)):
        torch.rand(7)  # the global generator plays no part
        param = torch.zeros(1000, dtype=torch.bfloat16)
        rounding.copy_stochastic_(param, weight, name=name, step=step)
        drawn.append(param)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[3])


@every_method
def test_bfloat16_weights_train_nearly_as_well(factory, arguments) -> None:
    source = torch.Generator().manual_seed(0)
    inputs = torch.randn(128, 32, generator=source)
    outputs = inputs @ torch.randn(32, 32, generator=source) / 6
    tamed = {"details": "safe"} if factory is memopt.GWT else {}
    losses = {}
    for dtype in (torch.float32, torch.bfloat16):
        weight = nn.Parameter(torch.zeros(32, 32, dtype=dtype))
        mode = "stochastic" if dtype is torch.bfloat16 else "nearest"
        optimizer = factory([weight], lr=5e-2, rounding=mode, **arguments, **tamed)
        for _ in range(60):
            optimizer.zero_grad()
            loss = (inputs @ weight.float().T - outputs).square().mean()
            loss.backward()
            optimizer.step()
        losses[dtype] = float(loss.detach())
    start = float(outputs.square().mean())
    assert losses[torch.float32] < 0.8 * start
    assert losses[torch.bfloat16] < losses[torch.float32] + 0.1 * start
