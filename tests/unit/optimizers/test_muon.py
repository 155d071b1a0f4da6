"""Muon: singular values by closed form, shape factors, and the rate of the plain weights."""

import pytest
import torch
from torch import nn

from memopt import Muon
from memopt.rules import muon


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def zeros(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=torch.float64))


def after_newton_schulz(matrix: torch.Tensor) -> torch.Tensor:
    """U p(p(p(p(p(s / ||X||))))) V^T with p(s) = 3.4445 s - 4.7750 s^3 + 2.0315 s^5."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / (values.square().sum().sqrt() + 1e-7)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return left @ torch.diag(values) @ right


@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (9, 9), (1, 7), (7, 1)])
@pytest.mark.parametrize("nesterov", [True, False])
def test_equations(shape, nesterov) -> None:
    weight, expected = zeros(*shape), draw(*shape, seed=9)
    weight.data.copy_(expected)
    optimizer = Muon([weight], lr=0.02, momentum=0.9, nesterov=nesterov, weight_decay=0.1)
    momentum = torch.zeros(shape, dtype=torch.float64)
    for seed in range(4):
        grad = draw(*shape, seed=seed)
        weight.grad = grad.clone()
        optimizer.step()
        momentum = 0.9 * momentum + 0.1 * grad
        mixed = 0.9 * momentum + 0.1 * grad if nesterov else momentum
        factor = max(1.0, shape[0] / shape[1]) ** 0.5
        expected = expected * (1 - 0.02 * 0.1) - 0.02 * factor * after_newton_schulz(mixed)
    # float64; a polynomial of degree 3125 in the smallest singular values
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("shape", [(16, 64), (64, 16)])
def test_match_rms_adamw_makes_an_rms_of_about_a_fifth_of_the_rate(shape) -> None:
    update = muon.orthogonalise(draw(*shape), "match_rms_adamw")
    # singular values in about 0.7 to 1.2 times 0.2 sqrt(64); RMS 1 / sqrt(64) of those
    rms = float(update.square().mean().sqrt())
    assert 0.2 * 0.7 < rms < 0.2 * 1.2


def test_a_kernel_is_a_matrix_of_outputs_and_the_rest() -> None:
    kernel, matrix = zeros(6, 3, 2, 2), zeros(6, 12)
    for weight in (kernel, matrix):
        weight.grad = draw(6, 12, seed=1).view_as(weight)
        Muon([weight]).step()
    torch.testing.assert_close(kernel.detach().flatten(1), matrix.detach(), rtol=0, atol=0)


# ---- the plain weights ---------------------------------------------------------------------


def plain_step(groups: list, bias: nn.Parameter, **options) -> torch.Tensor:
    optimizer = Muon(groups, eps=0.0, **options)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    for _ in range(2):
        bias.grad = torch.full_like(bias, 3.0)
        optimizer.step()
        schedule.step()
    return bias.detach()


def test_plain_weights_move_and_decay_at_their_own_rate_on_the_one_schedule() -> None:
    bias = nn.Parameter(torch.ones(3, dtype=torch.float64))
    got = plain_step([bias, zeros(2, 2)], bias, lr=0.02, adam_scale=0.5, weight_decay=0.1)
    expected = 1.0
    for rate in (0.01, 0.005):  # half of 0.02, then of 0.01
        expected = expected * (1 - rate * 0.1) - rate  # a constant gradient: Adam's step is 1
    torch.testing.assert_close(got, torch.full((3,), expected, dtype=torch.float64))


def test_a_group_can_have_a_rate_of_its_own() -> None:
    bias = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    own = {"params": [bias], "treated": False, "lr": 0.3, "adam_scale": 1.0}
    got = plain_step([own, {"params": [zeros(2, 2)]}], bias)
    torch.testing.assert_close(got, torch.full((3,), -0.45, dtype=torch.float64))


def test_defaults_are_the_references() -> None:
    optimizer = Muon([zeros(2, 2)])
    group = optimizer.param_groups[0]
    assert group["lr"] * group["adam_scale"] == pytest.approx(3e-4)
    assert (group["momentum"], group["betas"]) == (0.95, (0.9, 0.95))


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, "momentum"),
        ({"adam_scale": -1.0}, "adam_scale"),
        ({"adjust_lr_fn": "match_rms_adam"}, "Did you mean 'match_rms_adamw'"),
        ({"precision": "float16"}, "Did you mean 'bfloat16'|Did you mean 'float32'"),
        ({"ns_steps": 5}, "argument"),
    ],
)
def test_bad_arguments(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        Muon([zeros(4, 4)], **arguments)
