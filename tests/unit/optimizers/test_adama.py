"""AdamA's algebra (sections 3, 4 and 9 of its fact sheet)."""

import pytest
import torch
from torch import Tensor, nn

import memopt

BETAS = (0.9, 0.99)


def gradients(steps: int, micro_batches: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(steps, micro_batches, 5, 3, dtype=torch.float64, generator=draw)


def run(grads: Tensor, scale: float | None = None, **arguments) -> tuple[nn.Parameter, dict]:
    """One weight; the backward of ``weight * g`` brings the gradient g."""
    weight = nn.Parameter(torch.ones(5, 3, dtype=torch.float64))
    optimizer = memopt.AdamA([weight], lr=0.01, betas=BETAS, **arguments)
    for step in grads:
        for grad in step:
            (weight * grad / (scale or len(step))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return weight, optimizer.state[weight]


def adamw(grads: Tensor, **arguments) -> tuple[nn.Parameter, dict]:
    weight = nn.Parameter(torch.ones(5, 3, dtype=torch.float64))
    optimizer = torch.optim.AdamW(
        [weight], lr=0.01, betas=BETAS, **{"weight_decay": 0.0, **arguments}
    )
    for step in grads:
        weight.grad = step.mean(0)
        optimizer.step()
    return weight, optimizer.state[weight]


def test_moments_are_the_explicit_sums() -> None:
    grads = gradients(6, 4)
    weight, state = run(grads, weight_decay=0.2)
    m, v, theta = torch.zeros(5, 3), torch.zeros(5, 3), torch.ones(5, 3)
    m, v, theta = m.double(), v.double(), theta.double()
    for t, step in enumerate(grads / 4, 1):
        m = BETAS[0] * m + (1 - BETAS[0]) * step.sum(0)
        v = BETAS[1] * v + (1 - BETAS[1]) * step.square().sum(0)
        mhat, vhat = m / (1 - BETAS[0] ** t), v / (1 - BETAS[1] ** t)
        theta = theta * (1 - 0.01 * 0.2) - 0.01 * mhat / (vhat.sqrt() + 1e-8)
    torch.testing.assert_close(state["exp_avg"], m, rtol=1e-12, atol=0)
    torch.testing.assert_close(state["exp_avg_sq"], v, rtol=1e-12, atol=0)
    torch.testing.assert_close(weight.detach(), theta, rtol=1e-12, atol=0)
    assert state["step"] == 6


def test_first_moment_is_adam_s_and_second_lies_within_its_bounds() -> None:
    """Cauchy-Schwarz: v of Adam <= N v of AdamA; over many draws the mean lies near 1, not 1/N."""
    grads = gradients(400, 8)
    _, ours = run(grads)
    _, theirs = adamw(grads)
    torch.testing.assert_close(ours["exp_avg"], theirs["exp_avg"], rtol=1e-10, atol=1e-12)
    ratio = ours["exp_avg_sq"] / theirs["exp_avg_sq"]
    assert (ratio >= 1 / 8).all()
    # pure noise: expectation 1 (section 4), an average of 15 elements over a horizon of 100 steps
    assert ratio.mean() == pytest.approx(1.0, abs=0.15)


def test_identical_micro_batches_divide_the_second_moment_by_n() -> None:
    grads = gradients(5, 1).expand(5, 8, 5, 3)
    _, ours = run(grads)
    _, theirs = adamw(grads)
    torch.testing.assert_close(ours["exp_avg"], theirs["exp_avg"], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(8 * ours["exp_avg_sq"], theirs["exp_avg_sq"], rtol=1e-12, atol=0)


def test_v_scale_n_is_the_mean_of_squared_micro_gradients() -> None:
    grads = gradients(6, 4)
    weight, state = run(grads, v_scale="N", micro_batches=4)
    v = torch.zeros(5, 3, dtype=torch.float64)
    for step in grads:
        v = BETAS[1] * v + (1 - BETAS[1]) * step.square().mean(0)
    torch.testing.assert_close(state["exp_avg_sq"], v, rtol=1e-12, atol=0)
    # identical micro-batches: then it is Adam itself, whatever N
    same = gradients(6, 1).expand(6, 4, 5, 3)
    weight, _ = run(same, v_scale="N", micro_batches=4)
    torch.testing.assert_close(weight.detach(), adamw(same)[0].detach(), rtol=1e-12, atol=0)


def test_order_of_micro_batches_does_not_matter() -> None:
    grads = gradients(3, 6)
    forward, _ = run(grads)
    backward, _ = run(grads.flip(1))
    torch.testing.assert_close(forward, backward, rtol=1e-12, atol=1e-15)


def test_only_the_product_of_splits_counts() -> None:
    """One mini-batch of four micro-batches is not two of two: t counts mini-batches."""
    grads = gradients(2, 4)
    _, state = run(grads)
    _, halves = run(grads.reshape(4, 2, 5, 3), scale=4.0)
    assert (state["step"], halves["step"]) == (2, 4)
    assert not torch.allclose(state["exp_avg"], halves["exp_avg"])


def test_rate_is_read_at_the_update() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = memopt.AdamA([weight], lr=0.5)
    (weight * torch.tensor([1.0, -2.0, 3.0])).sum().backward()
    optimizer.param_groups[0]["lr"] = 0.125
    optimizer.step()
    torch.testing.assert_close(weight.detach(), 1 - 0.125 * torch.tensor([1.0, -1.0, 1.0]))


def test_late_and_missing_gradients() -> None:
    """Decay at a parameter's own first micro-gradient; none at all: untouched, as in AdamW."""
    late, missing = (nn.Parameter(torch.ones(2)) for _ in range(2))
    always = nn.Parameter(torch.ones(2))
    optimizer = memopt.AdamA([late, missing, always], lr=0.1, betas=BETAS)
    for _ in range(2):
        always.sum().backward()
        (always.sum() + late.sum() + 0 * missing.detach().sum()).backward()
        optimizer.step()
    one_gradient = (1 - BETAS[1]) * (1 + BETAS[1])
    torch.testing.assert_close(optimizer.state[late]["exp_avg_sq"], torch.full((2,), one_gradient))
    assert optimizer.state[late]["step"] == 2
    assert torch.equal(missing.detach(), torch.ones(2))
    assert missing not in optimizer.state


def test_low_precision_weights_keep_float32_moments() -> None:
    weight = nn.Parameter(torch.ones(4, 4, dtype=torch.bfloat16))
    optimizer = memopt.AdamA([weight], lr=0.1)
    for _ in range(64):  # each adds less than a bfloat16 step to v
        (weight * (1 / 64)).sum().backward()
    optimizer.step()
    state = optimizer.state[weight]
    assert state["exp_avg_sq"].dtype is torch.float32
    expected = 64 * (1 - 0.999) * (1 / 64) ** 2
    torch.testing.assert_close(state["exp_avg_sq"], torch.full((4, 4), expected))


def test_maximize_ascends() -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = memopt.AdamA([weight], lr=0.1, maximize=True)
    weight.sum().backward()
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.1))


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"v_scale": 2}, "unknown v_scale '2'"),
        ({"v_scale": "N"}, "needs micro_batches"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"lr": -1.0}, "lr must be"),
        ({"micro_batches": 0}, "micro_batches must be an integer above zero"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        memopt.AdamA([nn.Parameter(torch.zeros(2))], **arguments)
