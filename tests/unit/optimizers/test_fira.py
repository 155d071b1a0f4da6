"""Fira against its equations written out by columns, in float64."""

import math

import pytest
import torch
from torch import Tensor, nn

from memopt import Fira, GaLore
from tests.unit.optimizers.growing import draw, gradients, train

B1, B2, EPS, GAMMA = 0.9, 0.999, 1e-6, 1.01
SHAPES = [(9, 5), (5, 9), (6, 6)]


def literal(
    weight: Tensor, grads: list[Tensor], *, rank: int, interval: int, lr: float, alpha: float,
    residual: str, decay: float, limits: list[float],
) -> Tensor:  # fmt: skip
    """The sheet's equations for m <= n (a tall matrix is transposed), column by column."""
    tall = weight.shape[0] >= weight.shape[1]
    weight = (weight.T if tall else weight).clone()
    before = None
    m = v = torch.zeros(rank, weight.shape[1], dtype=torch.float64)
    for t, grad in enumerate(grads, start=1):
        g = grad.T if tall else grad
        if (t - 1) % interval == 0:
            # of G itself: signs of singular vectors are arbitrary, and moments outlive a basis
            u, _, vh = torch.linalg.svd(grad, full_matrices=False)
            p = vh.T[:, :rank] if tall else u[:, :rank]
        r = p.T @ g
        m, v = B1 * m + (1 - B1) * r, B2 * v + (1 - B2) * r**2
        psi = m / (v.sqrt() + EPS)
        s = torch.zeros_like(g)
        for j in range(g.shape[1]):
            phi = psi[:, j].norm() / (r[:, j].norm() + 1e-8)
            left = p @ r[:, j] if residual == "paper" else alpha * (p @ r[:, j])
            s[:, j] = phi * (g[:, j] - left)
        if before is not None and s.norm() / (before + 1e-8) > GAMMA:
            limits.append(float(s.norm() / (before + 1e-8)))
            s = s / limits[-1] * GAMMA
        before = s.norm()
        correction = math.sqrt(1 - B2**t) / (1 - B1**t)
        weight -= lr * correction * (alpha * p @ psi + s)
        weight -= lr * decay * weight
    return weight.T if tall else weight


@pytest.mark.parametrize("residual", ["paper", "official"])
@pytest.mark.parametrize("alpha", [0.25, 1.0])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_equations(shape, rank, alpha, residual) -> None:
    start, limits = draw(*shape, seed=99), []
    expected = literal(
        start, gradients(shape), rank=rank, interval=3, lr=0.02, alpha=alpha,
        residual=residual, decay=0.1, limits=limits,
    )  # fmt: skip
    assert 0 < len(limits) < 7  # the limiter was at work, and not always
    weight = nn.Parameter(start.clone())
    optimizer = Fira(
        [weight], lr=0.02, rank=rank, update_interval=3, scale=alpha, residual=residual,
        weight_decay=0.1,
    )  # fmt: skip
    ours = train(optimizer, weight, gradients(shape))
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


def first_step(residual: str, alpha: float, shape: tuple[int, int]) -> Tensor:
    weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    optimizer = Fira([weight], lr=1.0, rank=2, scale=alpha, residual=residual, eps=0.0)
    return -train(optimizer, weight, [draw(*shape, seed=5)])


@pytest.mark.parametrize("shape", [(9, 5), (5, 9)])
def test_what_the_switch_changes(shape) -> None:
    """Official minus paper: the share 1 - alpha of the projected gradient, scaled per channel.

    At the first step without eps the moments give psi = sign(R) (1-b1)/sqrt(1-b2) and the
    correction takes the factor back, so phi_j = sqrt(r) / ||R_j||.
    """
    alpha, grad = 0.25, draw(*shape, seed=5)
    u, _, vh = torch.linalg.svd(grad, full_matrices=False)
    tall = shape[0] >= shape[1]
    inside = grad @ vh[:2].T @ vh[:2] if tall else u[:, :2] @ u[:, :2].T @ grad
    norms = inside.norm(dim=1 if tall else 0, keepdim=True)
    difference = first_step("official", alpha, shape) - first_step("paper", alpha, shape)
    expected = (1 - alpha) * math.sqrt(2) * inside / norms
    torch.testing.assert_close(difference, expected, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(first_step("official", 1.0, shape), first_step("paper", 1.0, shape))


@pytest.mark.parametrize("shape", SHAPES)
def test_at_full_rank_the_paper_leaves_galore(shape) -> None:
    weights = [nn.Parameter(draw(*shape, seed=1)) for _ in range(2)]
    ours = train(Fira([weights[0]], rank=20, residual="paper"), weights[0], gradients(shape))
    galore = train(GaLore([weights[1]], rank=20), weights[1], gradients(shape))
    # what is left of the residual is rounding
    torch.testing.assert_close(ours, galore, rtol=0, atol=1e-13)


def test_limiter_bounds_the_growth_of_the_residual() -> None:
    weight = nn.Parameter(torch.zeros(8, 6, dtype=torch.float64))
    optimizer = Fira([weight], rank=2, residual="paper")
    norms = []
    for step in range(6):
        # the part inside the basis stays, the rest explodes: unlimited, so would the step
        grad = torch.zeros(8, 6, dtype=torch.float64)
        grad[0, 0], grad[1, 1], grad[2:, 2:] = 9.0, 8.0, 1e-3 * 10.0**step
        grad[2:, :2] = 1.0
        train(optimizer, weight, [grad])
        norms.append(float(optimizer.state[weight]["update_norm"]))
    ratios = [after / before for before, after in zip(norms, norms[1:], strict=False)]
    assert max(ratios) == pytest.approx(1.01, rel=1e-6)
    free = Fira([nn.Parameter(torch.zeros(8, 6))], rank=2, norm_growth_limit=None)
    assert "update_norm" not in free.buffers((8, 6), free.param_groups[0])


def test_groups_of_the_released_code() -> None:
    group = {"params": [nn.Parameter(torch.zeros(6, 4))], "rank": 2, "alpha": 0.5}
    optimizer = Fira([group | {"update_proj_gap": 7, "proj_type": "left"}])
    own = optimizer.param_groups[0]
    assert (own["scale"], own["update_interval"], own["side"]) == (0.5, 7, "left")


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"residual": "offical"}, "Did you mean 'official'"),
        ({"norm_growth_limit": 0.0}, "norm_growth_limit must be a finite number above zero"),
        ({"rank": 0}, "rank must be an integer of 1 or more, got 0"),
        ({"rule": "adam"}, "argument 'rule'"),  # Adam is the method: nothing to choose
    ],
)
def test_bad_input(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        Fira([nn.Parameter(torch.zeros(6, 4))], **arguments)
