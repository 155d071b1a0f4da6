"""RSO: outer and inner loop written out, its subspaces, and bad input."""

import pytest
import torch
from torch import Tensor, nn

import memopt
from memopt.subspaces import random


def written_out(
    weight: Tensor, pulls: list[Tensor], rank: int, inner_steps: int, proximal: float
) -> Tensor:
    """min_B f(W_k + P_k B) + c ||B||^2 in the paper's orientation, B by torch's Adam.

    ``f(W) = sum_t <pulls_t, W> + ||W||^2 / 4`` at step t, W (inputs x outputs) as in y = x W.
    """
    weight = weight.T.clone()  # torch keeps (outputs, inputs)
    for outer in range(len(pulls) // inner_steps):
        draw = random.gaussian(len(weight), rank, 5, "w", outer, like=weight)
        factor = torch.zeros(rank, weight.shape[1], dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([factor], lr=0.1, betas=(0.8, 0.9), eps=1e-200)
        for pull in pulls[outer * inner_steps : (outer + 1) * inner_steps]:
            moved = weight + draw @ factor
            loss = (pull.T * moved).sum() + moved.square().sum() / 4
            adam.zero_grad()
            (loss + proximal * factor.square().sum()).backward()
            adam.step()
        weight = (weight + draw @ factor).detach()
    return weight.T


def run(weight: nn.Parameter, pulls: list[Tensor], **arguments) -> memopt.RSO:
    options = {"lr": 0.1, "betas": (0.8, 0.9), "eps": 1e-200, "projection_seed": 5, **arguments}
    optimizer = memopt.RSO([("w", weight)], **options)
    for pull in pulls:
        weight.grad = pull + weight.detach() / 2
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("proximal", [0.0, 0.7])
@pytest.mark.parametrize(("shape", "rank"), [((9, 5), 2), ((4, 11), 3)])
def test_outer_and_inner_loop(shape, rank, proximal, keep) -> None:
    start = torch.randn(shape, dtype=torch.float64)
    pulls = [torch.randn(shape, dtype=torch.float64) for _ in range(12)]
    weight = nn.Parameter(start.clone())
    options = {"rank": rank, "update_interval": 4, "proximal": proximal, "keep_projection": keep}
    run(weight, pulls, **options)
    expected = written_out(start, pulls, rank, 4, proximal)
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-10)


def test_moments_are_discarded_at_every_outer_step() -> None:
    weight = nn.Parameter(torch.zeros(6, 8))
    optimizer = run(
        weight, [torch.randn(6, 8) for _ in range(3)], rank=2, update_interval=3, eps=1e-8
    )
    weight.grad = torch.zeros(6, 8)
    before = weight.detach().clone()
    optimizer.step()  # the fourth: a new subspace, nothing left of the old momentum
    assert torch.equal(weight.detach(), before)
    assert not optimizer.state[weight]["exp_avg"].any()


def test_an_outer_step_stays_in_its_subspace() -> None:
    weight = nn.Parameter(torch.zeros(12, 9, dtype=torch.float64))
    run(weight, [torch.randn(12, 9, dtype=torch.float64) for _ in range(5)], rank=3)
    assert torch.linalg.matrix_rank(weight.detach()) == 3
    draw = random.gaussian(9, 3, 5, "w", 0, like=weight.detach())
    rest = weight - weight @ draw @ torch.linalg.pinv(draw)
    torch.testing.assert_close(rest.detach(), torch.zeros(12, 9, dtype=torch.float64))


@pytest.mark.parametrize("side", ["left", "right", "std", "reverse_std"])
@pytest.mark.parametrize("distribution", ["gaussian", "haar"])
def test_sides_and_kernels(side, distribution) -> None:
    kernel = nn.Parameter(torch.zeros(6, 3, 2, 2))
    grads = [torch.randn(6, 3, 2, 2) for _ in range(3)]
    optimizer = run(kernel, grads, rank=4, side=side, distribution=distribution, eps=1e-8)
    kept = {"right": (6, 4), "left": (4, 12), "std": (4, 12), "reverse_std": (6, 4)}[side]
    assert optimizer.state[kernel]["exp_avg"].shape == kept  # of a 6 x 12 matrix
    assert kernel.isfinite().all() and kernel.any()


def test_haar_is_orthogonal_and_its_mean_projection_is_the_identity() -> None:
    like = torch.zeros((), dtype=torch.float64)
    total = torch.zeros(6, 6, dtype=torch.float64)
    count = 4000
    for number in range(count):
        draw = random.haar(6, 2, "seed", number, like=like)
        if number < 20:
            # drawn in float32: orthogonal to its rounding
            torch.testing.assert_close(
                draw.T @ draw, 3 * torch.eye(2, dtype=torch.float64), rtol=1e-5, atol=1e-5
            )
        total += draw @ draw.T
    # entries of P P^T are below 3: five standard errors of a mean over 4000 are below 0.1
    torch.testing.assert_close(total / count, torch.eye(6, dtype=torch.float64), rtol=0, atol=0.1)


def test_rank_beyond_the_side_is_cut() -> None:
    weight = nn.Parameter(torch.zeros(7, 4))
    optimizer = run(weight, [torch.randn(7, 4)], rank=100, distribution="haar", eps=1e-8)
    assert optimizer.state[weight]["exp_avg"].shape == (7, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank must be an integer of 1 or more"),
        ({"update_interval": 0}, "update_interval must be an integer of 1 or more"),
        ({"proximal": -1.0}, "proximal must be a finite number of zero or more"),
        ({"distribution": "har"}, "unknown distribution 'har'. Did you mean 'haar'"),
        ({"side": "rigth"}, "unknown side 'rigth'. Did you mean 'right'"),
        ({"keep_projection": 1}, "keep_projection must be True or False"),
        ({"storage": "4bit"}, "unknown storage '4bit'. Did you mean '8bit'"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        memopt.RSO([nn.Parameter(torch.ones(3, 3))], **arguments)
