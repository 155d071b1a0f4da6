"""Adafactor: equations written out, both ways of setting the rate, and what it refuses."""

import io

import pytest
import torch
from torch import Tensor, nn

import memopt


def trained(start: Tensor, grads: list[Tensor], **arguments) -> tuple[Tensor, dict]:
    weight = nn.Parameter(start.clone())
    optimizer = memopt.Adafactor([weight], **arguments)
    for grad in grads:
        weight.grad = grad
        optimizer.step()
    return weight.detach(), optimizer.state[weight]


def draws(shape: tuple[int, ...], count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=draw) for _ in range(count)]


@pytest.mark.parametrize("beta1", [None, 0.9])
@pytest.mark.parametrize("lr", [None, 0.05])
def test_algorithm_5_written_out(lr, beta1) -> None:
    start, *grads = draws((4, 6), 9)
    theta, r, c, m = start, torch.zeros(4, 1), torch.zeros(1, 6), torch.zeros(4, 6)
    for t, g in enumerate(grads, start=1):
        b = 1 - t**-0.8
        r = b * r + (1 - b) * (g**2 + 1e-30).sum(1, keepdim=True)  # row sums, as the paper has them
        c = b * c + (1 - b) * (g**2 + 1e-30).sum(0, keepdim=True)
        u = g / (r @ c / r.sum()).sqrt()
        u = u / max(1.0, float(u.square().mean().sqrt()))
        rho = min(1e-2, t**-0.5) if lr is None else lr
        rate = rho * max(1e-3, float(theta.square().mean().sqrt()))
        m = 0.9 * m + 0.1 * rate * u if beta1 else rate * u
        theta = theta * (1 - rate * 0.1) - m
    got, state = trained(start, grads, lr=lr, beta1=beta1, weight_decay=0.1)
    torch.testing.assert_close(got, theta, rtol=1e-12, atol=1e-13)
    factors = {"step", "exp_avg_sq_row", "exp_avg_sq_col"}
    assert state.keys() == (factors | {"exp_avg"} if beta1 else factors)


def test_squares_of_rank_one_give_the_sign() -> None:
    # v is g*g itself at t = 1: u = sign(g), RMS 1; a rate of 1 times the weight's RMS
    grad = torch.tensor([1.0, -2.0, 3.0]).double()[:, None] * torch.tensor([-0.5, 4.0]).double()
    got, _ = trained(torch.full((3, 2), 2.0).double(), [grad], lr=1.0)
    torch.testing.assert_close(got, 2 - 2 * grad.sign(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "warmup, t, rho",
    [
        (False, 1, 1e-2), (False, 10_000, 1e-2), (False, 40_000, 5e-3),
        (True, 1, 1e-6), (True, 10_000, 1e-2), (True, 40_000, 5e-3),
    ],
)  # fmt: skip
def test_relative_steps(warmup, t, rho) -> None:
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    optimizer = memopt.Adafactor([weight], scale_parameter=False, warmup_init=warmup)
    for _ in range(2):  # a constant gradient: u is 1 whatever the decay
        optimizer.state[weight].update({"step": t - 1} if optimizer.state[weight] else {})
        before = weight.detach().clone()
        weight.grad = torch.full((3,), 0.7, dtype=torch.float64)
        optimizer.step()
    assert (before - weight.detach()).tolist() == pytest.approx([rho] * 3, rel=1e-9)
    assert optimizer.param_groups[0]["lr"] is None  # never rewritten


def test_least_scale_of_a_weight_at_zero() -> None:
    got, _ = trained(torch.zeros(4).double(), [torch.ones(4).double()], lr=0.5)
    assert got.tolist() == pytest.approx([-0.5e-3] * 4)


@pytest.mark.parametrize("shape", [(), (5,), (4, 3), (2, 3, 4), (2, 3, 5, 4)])
def test_what_is_kept(shape) -> None:
    weight, grad = draws(shape, 2)
    _, state = trained(weight, [grad], beta1=0.9)
    kept = {k: tuple(v.shape) for k, v in state.items() if k != "step"}
    factors = {"exp_avg_sq": shape}
    if len(shape) > 1:
        factors = {"exp_avg_sq_row": shape[:-1], "exp_avg_sq_col": (*shape[:-2], shape[-1])}
    assert kept == {"exp_avg": shape} | factors


def test_adalomo_is_this_inside_backward() -> None:
    weights = [nn.Parameter(draws((6, 5), 1)[0].float()) for _ in range(2)]
    optimizers = [memopt.AdaLomo(weights[:1], lr=0.1), memopt.Adafactor(weights[1:], lr=0.1)]
    for grad in draws((6, 5), 20):
        for weight, optimizer in zip(weights, optimizers, strict=True):
            (weight * grad.float()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(*weights)


def test_resume_under_relative_steps() -> None:
    start, *grads = draws((4, 6), 9)
    whole, _ = trained(start, grads, beta1=0.5)
    weight = nn.Parameter(start.clone())
    first = memopt.Adafactor([weight], beta1=0.5)
    for grad in grads[:3]:
        weight.grad = grad
        first.step()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = memopt.Adafactor([weight], lr=1.0, beta1=0.5)  # the saved lr=None comes back
    second.load_state_dict(torch.load(file, weights_only=True))
    for grad in grads[3:]:
        weight.grad = grad
        second.step()
    assert torch.equal(weight.detach(), whole)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"lr": -1.0}, "lr must be a finite number"),
        ({"lr": 0.1, "warmup_init": True}, "warmup_init is a form of relative steps"),
        ({"beta1": 1.0}, "beta1 must be below one"),
        ({"beta1": 0.0}, "beta1 must be a finite number above zero"),
        ({"eps": 1e-8}, "eps must be two numbers above zero"),
        ({"decay_rate": 0.8}, "decay_rate must be below zero"),
        ({"clip_threshold": 0}, "clip_threshold must be a finite number above zero"),
        ({"relative_step": True}, "argument 'relative_step'"),
    ],
)
def test_bad_input_is_named(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        memopt.Adafactor([nn.Parameter(torch.ones(2))], **arguments)


def test_accumulation_is_refused() -> None:
    optimizer = memopt.Adafactor([nn.Parameter(torch.ones(2))])
    with pytest.raises(memopt.UnsupportedCombination, match="gradient of the whole mini-batch"):
        memopt.accumulate_in_backward(optimizer)
