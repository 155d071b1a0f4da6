"""GWT against golden values of the official optimizer, its own explicit form, and limits."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from memopt import GWT
from memopt.rules import adam
from memopt.subspaces import haar

DIGITS = 1.5e-8  # golden weights are printed with eight decimals, rounded or cut


def steps(optimizer: torch.optim.Optimizer, weight: Tensor, gradients: list[Tensor]) -> list:
    """The weight after each of the gradients."""
    trajectory = []
    for gradient in gradients:
        weight.grad = gradient.clone()
        optimizer.step()
        trajectory.append(weight.detach().clone())
    return trajectory


# The official optimizer's float64 trajectories from a zero weight, lr 0.01, alpha 0.25.
GOLDEN = {
    "four columns, two levels": (
        2,
        [(1, 2, 3, 5), (10, -4, 2, 2)],
        [
            (0.00670451, 0.00215908, -0.00238635, -0.01147721),
            (-0.00839778, 0.01349406, -0.00238163, -0.01147249),
        ],
        1.325730,
    ),
    "odd width, one level": (
        1,
        [(1, 2, 3, 5, 4), (2, 2, 2, 2, 2)],
        [
            (0.00412473, -0.00766021, 0.00265164, -0.00618715, -0.01944522),
            (0.00273636, -0.00904858, 0.00135395, -0.00748484, -0.02537748),
        ],
        1.269849,
    ),
}


@pytest.mark.parametrize("level, gradients, weights, divisor", GOLDEN.values(), ids=GOLDEN)
def test_golden_trajectory(level, gradients, weights, divisor) -> None:
    gradients = [torch.tensor([g], dtype=torch.float64) for g in gradients]
    weight = nn.Parameter(torch.zeros_like(gradients[0]))
    optimizer = GWT([weight], lr=0.01, scale=0.25, level=level)
    for got, expected in zip(steps(optimizer, weight, gradients), weights, strict=True):
        expected = torch.tensor([expected], dtype=torch.float64)
        torch.testing.assert_close(got, expected, rtol=0, atol=DIGITS)
    # the limiter's divisor of the second step: unlimited norm over the remembered, limited one
    state = optimizer.state[weight]
    unlimited = (state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-6)).norm()
    assert float(unlimited / state["update_norm"]) == pytest.approx(divisor, abs=1e-6)


def band_by_band(gradient, exp_avg, denominator, level):
    """The paper's form: inverse transform of [M / N, D_L / N_L, ..., D_1 / N_1]."""
    _, details = haar.forward(gradient, level)
    scaled, repeated = [], denominator
    for detail in details:
        scaled.append(detail / repeated)
        repeated = torch.repeat_interleave(repeated, 2, dim=1)
    return haar.inverse(exp_avg / denominator, scaled, gradient.shape[1])


@given(
    rows=st.integers(1, 5),
    columns=st.integers(1, 70),
    level=st.integers(0, 5),
    seed=st.integers(0, 2**31),
    limit=st.sampled_from([None, 1.01]),
)
def test_fast_form_equals_band_by_band(rows, columns, level, seed, limit) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = nn.Parameter(torch.zeros(rows, columns, dtype=torch.float64))
    optimizer = GWT([weight], lr=1.0, scale=1.0, level=level, norm_growth_limit=limit)
    for step in range(1, 4):
        before = weight.detach().clone()
        norm = optimizer.state[weight].get("update_norm", torch.zeros(())).clone()
        weight.grad = torch.randn(rows, columns, dtype=torch.float64, generator=draw)
        optimizer.step()
        state = optimizer.state[weight]
        denominator = state["exp_avg_sq"].sqrt() + 1e-6
        growth = (state["exp_avg"] / denominator).norm() / (norm + 1e-8)
        divisor = 1.0 if limit is None or step == 1 else max(float(growth), limit) / limit
        denominator = denominator * divisor  # the limiter's c
        direction = band_by_band(weight.grad, state["exp_avg"], denominator, level)
        expected = direction * adam.bias_correction(step, (0.9, 0.999))
        # float64 rounding, relative to the largest entry: details are divided by denominators
        # that can be small
        tolerance = 1e-12 * float(expected.abs().max())
        torch.testing.assert_close(before - weight.detach(), expected, rtol=0, atol=tolerance)


def test_level_0_without_limiter_is_adam() -> None:
    draw = torch.Generator().manual_seed(1)
    gradients = [torch.randn(5, 7, dtype=torch.float64, generator=draw) for _ in range(20)]
    ours, theirs = (nn.Parameter(torch.ones(5, 7, dtype=torch.float64)) for _ in range(2))
    gwt = GWT([ours], lr=0.1, scale=1.0, level=0, norm_growth_limit=None, eps=0.0)
    adamw = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.0, eps=0.0)
    torch.testing.assert_close(
        steps(gwt, ours, gradients), steps(adamw, theirs, gradients), rtol=1e-12, atol=1e-12
    )


def test_limiter_bounds_the_growth_of_the_update() -> None:
    weight = nn.Parameter(torch.zeros(4, 8, dtype=torch.float64))
    optimizer = GWT([weight], lr=1.0, scale=1.0, level=0)
    norms = []
    for step in range(1, 12):
        before = weight.detach().clone()
        # Alternating noise keeps M small; then a constant sign would make it jump.
        sign = (-1.0) ** step if step < 6 else 1.0
        weight.grad = torch.full((4, 8), sign, dtype=torch.float64)
        optimizer.step()
        correction = adam.bias_correction(step, (0.9, 0.999))
        norms.append(float((before - weight.detach()).norm()) / correction)
    growth = [b / a for a, b in zip(norms, norms[1:], strict=False)]
    assert max(growth) <= 1.01 + 1e-7  # 1e-8 in the limiter's own denominator
    assert growth[5] == pytest.approx(1.01, abs=1e-6)  # the jump, limited


def test_a_zero_first_gradient_does_not_freeze_the_weight() -> None:
    # B = 0 in LoRA makes A's first gradient zero. A limiter that remembers this norm would let
    # the update grow by 1 % a step from nothing: some 1800 steps of standstill.
    weight = nn.Parameter(torch.zeros(2, 4, dtype=torch.float64))
    optimizer = GWT([weight], lr=0.1, scale=1.0, level=1)
    weights = steps(optimizer, weight, [torch.zeros(2, 4).double(), torch.ones(2, 4).double()])
    assert torch.equal(weights[0], torch.zeros_like(weights[0]))
    # Adam's second step after the gradients 0 and 1: m = 0.1, v = 0.001; no detail, so 1/sqrt 2
    expected = 0.1 * 0.1 / math.sqrt(0.001 * 2) * adam.bias_correction(2, (0.9, 0.999))
    assert float(weights[1].abs().mean()) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_state_is_the_formula_of_the_paper(level) -> None:
    weight = nn.Parameter(torch.zeros(6, 40))
    optimizer = GWT([weight], level=level)
    weight.grad = torch.ones(6, 40)
    optimizer.step()
    numbers = sum(t.numel() for t in optimizer.state[weight].values() if isinstance(t, Tensor))
    assert numbers == 2 * 6 * 40 // 2**level + 1


def test_constant_rows_have_no_detail() -> None:
    # then GWT is Adam on the row's one number, repeated
    weight = nn.Parameter(torch.zeros(3, 8, dtype=torch.float64))
    weight.grad = torch.tensor([[1.0], [-2.0], [3.0]], dtype=torch.float64).expand(3, 8).clone()
    GWT([weight], lr=0.1, scale=1.0, level=3, eps=0.0).step()
    expected = torch.tensor([[-0.1], [0.1], [-0.1]], dtype=torch.float64).expand(3, 8)
    # a block of 8 has a = sqrt(8) g; M/N is sqrt(8)-free, so each entry moves by lr / sqrt(8)
    torch.testing.assert_close(weight.detach(), expected / math.sqrt(8), rtol=1e-12, atol=0)


def test_zero_band_with_detail_divides_by_eps_alone() -> None:
    # documented hazard of the method: alternating signs have no block mean
    weight = nn.Parameter(torch.zeros(1, 4, dtype=torch.float64))
    weight.grad = torch.tensor([[1.0, -1.0, 2.0, -2.0]], dtype=torch.float64)
    GWT([weight], lr=0.01, scale=1.0, level=1).step()
    moved = 0.01 * adam.bias_correction(1, (0.9, 0.999)) / 1e-6
    torch.testing.assert_close(-weight.detach(), weight.grad * moved, rtol=1e-9, atol=0)


def test_bfloat16_gradient_is_transformed_in_float32() -> None:
    low = nn.Parameter(torch.zeros(4, 16, dtype=torch.bfloat16))
    high = nn.Parameter(torch.zeros(4, 16))
    low.grad = torch.randn(4, 16).bfloat16()
    high.grad = low.grad.float()
    GWT([low]).step()
    GWT([high]).step()
    assert torch.equal(low.detach(), high.detach().bfloat16())


def test_convolutions_are_transformed_as_flattened_rows() -> None:
    weight = nn.Parameter(torch.zeros(6, 3, 3, 3, dtype=torch.float64))
    flat = nn.Parameter(torch.zeros(6, 27, dtype=torch.float64))
    gradient = torch.randn(6, 3, 3, 3, dtype=torch.float64)
    weight.grad, flat.grad = gradient, gradient.flatten(1)
    GWT([weight]).step()
    GWT([flat]).step()
    assert torch.equal(weight.detach().flatten(1), flat.detach())
    assert haar.approximation_width(27, 2) == 7
