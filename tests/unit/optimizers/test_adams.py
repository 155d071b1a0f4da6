"""AdamS: golden values of its equations, in both readings of the bias correction."""

import pytest
import torch
from torch import Tensor, nn

import memopt


def updates(grads: list[Tensor], **arguments) -> list[Tensor]:
    """What each step subtracts, in units of the rate."""
    weight = nn.Parameter(torch.zeros_like(grads[0]))
    optimizer = memopt.AdamS([weight], **{"lr": 1.0, "eps": 0.0, **arguments})
    answer = []
    for grad in grads:
        before = weight.detach().clone()
        weight.grad = grad
        optimizer.step()
        answer.append(before - weight.detach())
    return answer


@pytest.mark.parametrize(
    "arguments, size",
    [
        ({}, 0.4472135954999579),  # (1 - 0.9) / sqrt(1 - 0.95)
        ({"betas": (0.9, 0.999)}, 3.1622776601683795),  # 0.1 / sqrt(0.001)
        ({"bias_correction": True}, 4.47213595499958),  # 1 / sqrt(0.05)
    ],
)
def test_first_update(arguments, size) -> None:
    grad = torch.tensor([3.0, -1e-3, 0.2], dtype=torch.float64)
    expected = size * torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(updates([grad], **arguments)[0], expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("corrected", [False, True])
def test_constant_gradient_tends_to_its_sign(corrected) -> None:
    grad = torch.tensor([2.0, -0.01], dtype=torch.float64)
    last = updates([grad] * 300, bias_correction=corrected)[-1]
    torch.testing.assert_close(last, torch.tensor([1.0, -1.0], dtype=torch.float64), rtol=1e-9,
                               atol=0)  # fmt: skip


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (2, 3, 2, 2)])
def test_equations_over_shapes(shape, corrected) -> None:
    draw = torch.Generator().manual_seed(0)
    start = torch.randn(shape, dtype=torch.float64, generator=draw)
    grads = [torch.randn(shape, dtype=torch.float64, generator=draw) for _ in range(10)]
    weight = nn.Parameter(start.clone())
    optimizer = memopt.AdamS(
        [weight], lr=0.1, eps=1e-3, weight_decay=0.2, bias_correction=corrected
    )
    theta, m = start, torch.zeros_like(start)
    for t, g in enumerate(grads, start=1):
        weight.grad = g
        optimizer.step()
        unbias = 1 - 0.9**t if corrected else 1.0
        nu = 0.95 * (m / unbias) ** 2 + 0.05 * g**2  # the old momentum
        m = 0.9 * m + 0.1 * g
        theta = (1 - 0.1 * 0.2) * theta - 0.1 * (m / unbias) / (nu.sqrt() + 1e-3)
    torch.testing.assert_close(weight.detach(), theta, rtol=1e-12, atol=1e-12)
    assert optimizer.state[weight].keys() == {"step", "exp_avg"}
    torch.testing.assert_close(optimizer.state[weight]["exp_avg"], m, rtol=1e-12, atol=1e-14)


def test_no_gradient_no_step() -> None:
    assert not updates([torch.zeros(3)] * 2, eps=1e-8)[1].any()


def test_bad_input_is_named() -> None:
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="group key 'bias_corection'. Did you mean"):
        memopt.AdamS([{"params": [weight], "bias_corection": True}])
    with pytest.raises(ValueError, match="eps must be a finite number"):
        memopt.AdamS([weight], eps=-1.0)
    with pytest.raises(memopt.UnsupportedCombination, match="needs the old momentum and the grad"):
        memopt.accumulate_in_backward(memopt.AdamS([weight]))
