"""Lion: equations written out, and what it refuses."""

import pytest
import torch
from torch import Tensor, nn

import memopt


def trained(start: Tensor, grads: list[Tensor], **arguments) -> tuple[Tensor, dict]:
    weight = nn.Parameter(start.clone())
    optimizer = memopt.Lion([weight], **{"lr": 0.1, **arguments})
    for grad in grads:
        weight.grad = grad
        optimizer.step()
    return weight.detach(), optimizer.state[weight]


def test_golden_steps() -> None:
    # by hand, betas 0.9, 0.99: m 0, 0.01, 0.0049, 0.008851
    # c = 0.9 m + 0.1 g:        0.1, -0.041, 0.04441
    grads = [torch.tensor([g], dtype=torch.float64) for g in (1.0, -0.5, 0.4)]
    for count, (weight, momentum) in enumerate([(-0.1, 0.01), (0.0, 0.0049), (-0.1, 0.008851)], 1):
        got, state = trained(torch.zeros(1, dtype=torch.float64), grads[:count])
        assert got.item() == pytest.approx(weight, abs=1e-15)
        assert state["exp_avg"].item() == pytest.approx(momentum, rel=1e-12)


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (2, 3, 2, 2)])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.95, 0.98)])
def test_equations_over_shapes(shape, betas) -> None:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(shape, dtype=torch.float64, generator=draw)
    grads = [torch.randn(shape, dtype=torch.float64, generator=draw) for _ in range(12)]
    theta, m = start, torch.zeros_like(start)
    for g in grads:
        c = betas[0] * m + (1 - betas[0]) * g
        theta = theta - 0.1 * (torch.sign(c) + 0.3 * theta)
        m = betas[1] * m + (1 - betas[1]) * g
    got, state = trained(start, grads, betas=betas, weight_decay=0.3)
    torch.testing.assert_close(got, theta, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state["exp_avg"], m, rtol=1e-12, atol=1e-14)


def test_elements_without_gradient_stay() -> None:
    grads = [torch.tensor([0.0, 1.0])] * 5
    weight, state = trained(torch.ones(2), grads)
    assert weight[0] == 1 and state["exp_avg"][0] == 0
    assert state.keys() == {"step", "exp_avg"}


def test_bad_input_is_named() -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"betas must each be in \[0, 1\)"):
        memopt.Lion([weight], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="argument 'eps'"):
        memopt.Lion([weight], eps=1e-8)
    with pytest.raises(ValueError, match="group key 'beta'. Did you mean 'betas'"):
        memopt.Lion([{"params": [weight], "beta": 0.9}])
    with pytest.raises(memopt.UnsupportedCombination, match="two different mixtures"):
        memopt.accumulate_in_backward(memopt.Lion([weight]))
