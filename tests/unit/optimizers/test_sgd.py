"""SGD: what it keeps, and micro-gradients that enter the momentum in backward."""

import pytest
import torch
from torch import nn

import memopt


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, parts: int, steps: int = 6) -> None:
    draw = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for rows in torch.randn(12, 6, generator=draw).chunk(parts):
            (model(rows).square().mean() / parts).backward()
            if optimizer.timing is not None:
                assert all(p.grad is None for p in model.parameters())
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_micro_gradients_enter_the_momentum(parts) -> None:
    models = [net(), net()]
    arguments = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = [memopt.SGD(m.named_parameters(), **arguments) for m in models]
    handle = memopt.accumulate_in_backward(optimizers[1])
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, parts)
    for held, accumulated in zip(*(m.parameters() for m in models), strict=True):
        # sums of the same micro-gradients, added in another order
        torch.testing.assert_close(held, accumulated, rtol=1e-5, atol=1e-6)
    assert {state["step"] for state in optimizers[1].state.values()} == {6}
    handle.remove()
    for model, optimizer in zip(models, optimizers, strict=True):
        train(model, optimizer, 1)
    for held, accumulated in zip(*(m.parameters() for m in models), strict=True):
        torch.testing.assert_close(held, accumulated, rtol=1e-5, atol=1e-6)


def test_golden_steps() -> None:
    # by hand, mu 0.5, lr 0.1, g 1, 2, -1: b 1, 2.5, 0.25; Nesterov's g + mu b 1.5, 3.25, -0.875
    for arguments, steps in (
        ({}, [1, 2, -1]),
        ({"momentum": 0.5}, [1, 2.5, 0.25]),
        ({"momentum": 0.5, "nesterov": True}, [1.5, 3.25, -0.875]),
    ):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = memopt.SGD([weight], lr=0.1, **arguments)
        for done, grad in enumerate([1.0, 2.0, -1.0], start=1):
            weight.grad = torch.tensor([grad], dtype=torch.float64)
            optimizer.step()
            assert weight.item() == pytest.approx(-0.1 * sum(steps[:done]), abs=1e-15)
        kept = optimizer.state[weight].keys()
        assert kept == ({"step", "momentum_buffer"} if arguments else {"step"})


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"momentum": 1.0}, r"momentum must be a number in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, "momentum"),
        ({"momentum": True}, "momentum"),
        ({"nesterov": True}, "nesterov=True needs a momentum"),
        ({"dampening": 0.1}, "argument 'dampening'"),
    ],
)
def test_bad_input_is_named(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        memopt.SGD([nn.Parameter(torch.ones(2))], lr=0.1, **arguments)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({}, "no state that could take"),
        ({"momentum": 0.9, "nesterov": True}, "Nesterov's step needs the gradient"),
        ({"momentum": 0.9, "storage": "8bit"}, "would be rounded to 8bit"),
    ],
)
def test_what_cannot_accumulate_says_why(arguments, reason) -> None:
    optimizer = memopt.SGD([nn.Parameter(torch.ones(2))], lr=0.1, **arguments)
    with pytest.raises(memopt.UnsupportedCombination, match=reason):
        memopt.accumulate_in_backward(optimizer)
