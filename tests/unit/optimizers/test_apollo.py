"""APOLLO and APOLLO-Mini against their equations written out, in float64."""

import hashlib
import math

import pytest
import torch
from torch import Tensor, nn

from memopt import APOLLO, APOLLOMini
from tests.unit.optimizers.growing import draw, gradients, train

B1, B2, EPS, GAMMA = 0.9, 0.999, 1e-6, 1.01
SHAPES = [(11, 5), (5, 11), (6, 6)]
NAME = "layers.3.mlp.weight"


def projection(length: int, rank: int, number: int, seed: int = 0, name: str = NAME) -> Tensor:
    """The documented draw: N(0, 1/r) from a hash of seed, name and number of the refresh."""
    digest = hashlib.sha256(f"{seed}/{name}/{number}".encode()).digest()
    source = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return (torch.randn(length, rank, generator=source) * rank**-0.5).double()


def literal(
    weight: Tensor, grads: list[Tensor], *, rank: int, interval: int, lr: float, alpha: float,
    tensor_wise: bool, decay: float, limits: list[float],
) -> Tensor:  # fmt: skip
    """The sheet's equations for m <= n (a tall matrix is transposed), column by column."""
    tall = weight.shape[0] >= weight.shape[1]
    weight = (weight.T if tall else weight).clone()
    before = None
    m = v = torch.zeros(rank, weight.shape[1], dtype=torch.float64)
    for t, grad in enumerate(grads, start=1):
        g = grad.T if tall else grad
        r = projection(g.shape[0], rank, (t - 1) // interval).T @ g
        m, v = B1 * m + (1 - B1) * r, B2 * v + (1 - B2) * r**2
        psi = m / (v.sqrt() + EPS)
        s = [psi[:, j].norm() / (r[:, j].norm() + 1e-8) for j in range(g.shape[1])]
        if tensor_wise:
            s = [psi.norm() / (r.norm() + 1e-8)] * g.shape[1]
        u = g @ torch.diag(torch.stack(s))
        if before is not None and u.norm() / (before + 1e-8) > GAMMA:
            limits.append(float(u.norm() / (before + 1e-8)))
            u = u / limits[-1] * GAMMA
        before = u.norm()
        correction = math.sqrt(1 - B2**t) / (1 - B1**t)
        weight -= lr * correction * alpha * u
        weight -= lr * decay * weight
    return weight.T if tall else weight


@pytest.mark.parametrize("tensor_wise", [False, True])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_equations(shape, rank, tensor_wise) -> None:
    start, limits = draw(*shape, seed=99), []
    expected = literal(
        start, gradients(shape), rank=rank, interval=3, lr=0.02, alpha=1.5,
        tensor_wise=tensor_wise, decay=0.1, limits=limits,
    )  # fmt: skip
    assert 0 < len(limits) < 7  # the limiter was at work, and not always
    weight = nn.Parameter(start.clone())
    optimizer = APOLLO(
        [(NAME, weight)], lr=0.02, rank=rank, update_interval=3, scale=1.5, weight_decay=0.1,
        granularity="tensor" if tensor_wise else "channel",
    )  # fmt: skip
    ours = train(optimizer, weight, gradients(shape))
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


def test_mini_is_rank_one_with_one_scale() -> None:
    start = draw(7, 12, seed=99)
    expected = literal(
        start, gradients((7, 12)), rank=1, interval=200, lr=0.01, alpha=math.sqrt(128),
        tensor_wise=True, decay=0.0, limits=[],
    )  # fmt: skip
    weight = nn.Parameter(start.clone())
    ours = train(APOLLOMini([(NAME, weight)]), weight, gradients((7, 12)))
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(11, 5), (5, 11)])
def test_first_step_in_closed_form(shape) -> None:
    """At t = 1 without eps psi is sign(R), so channel j moves by lr sqrt(r) G_j / ||R_j||."""
    rank, grad = 3, draw(*shape, seed=7)
    weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    step = -train(APOLLO([(NAME, weight)], lr=1.0, rank=rank, eps=0.0), weight, [grad])
    p = projection(min(shape), rank, 0)
    r = grad @ p if shape[0] > shape[1] else p.T @ grad
    norms = r.norm(dim=1 if shape[0] > shape[1] else 0, keepdim=True)
    torch.testing.assert_close(step, math.sqrt(rank) * grad / norms, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_kept_projection_is_the_one_drawn_again(dtype) -> None:
    weights = [nn.Parameter(draw(8, 5, seed=1).to(dtype)) for _ in range(2)]
    results = []
    for weight, keep in zip(weights, (False, True), strict=True):
        optimizer = APOLLO([("w", weight)], rank=3, update_interval=3, keep_projection=keep)
        assert ("projection" in optimizer.buffers((8, 5), optimizer.param_groups[0])) == keep
        results.append(train(optimizer, weight, [g.to(dtype) for g in gradients((8, 5))]))
    assert torch.equal(*results)


def test_updates_follow_names_and_not_positions() -> None:
    """Another parameter in the list, or another order, changes nobody's projection."""

    def run(names: list[str]) -> dict[str, Tensor]:
        weights = {name: nn.Parameter(torch.zeros(6, 4)) for name in names}
        optimizer = APOLLO(weights.items(), rank=2, update_interval=2)
        for step in range(5):
            for name, weight in weights.items():
                weight.grad = draw(6, 4, seed=step + 100 * ord(name)).float()
            optimizer.step()
        return {name: weight.detach() for name, weight in weights.items()}

    alone, among = run(["b", "a"]), run(["c", "a", "b"])
    assert torch.equal(alone["a"], among["a"]) and torch.equal(alone["b"], among["b"])
    # and no two weights share one
    assert not torch.equal(projection(6, 2, 0, name="a"), projection(6, 2, 0, name="b"))


def test_scale_in_front_of_the_limiter() -> None:
    """The limiter sees ratios, so a constant factor is the same on both sides; a new one is not."""
    shape, grad = (6, 9), draw(6, 9, seed=0)
    sizes = {}
    for front in (False, True):
        weight = nn.Parameter(torch.zeros(shape, dtype=torch.float64))
        optimizer = APOLLO([(NAME, weight)], rank=2, scale=2.0, scale_front=front, betas=(0, 0))
        moved = [train(optimizer, weight, [grad]).clone()]
        optimizer.param_groups[0]["scale"] = 6.0
        moved.append(train(optimizer, weight, [grad]) - moved[0])
        sizes[front] = float(moved[1].norm() / moved[0].norm())
    # without momentum equal gradients make equal steps
    assert sizes[False] == pytest.approx(3.0)
    assert sizes[True] == pytest.approx(1.01)


def test_svd_variant_scales_by_the_leading_directions() -> None:
    shape, rank = (9, 6), 2
    grad, weight = draw(*shape, seed=3), nn.Parameter(torch.zeros(9, 6, dtype=torch.float64))
    optimizer = APOLLO([weight], lr=1.0, rank=rank, projection="svd", eps=0.0)
    step = -train(optimizer, weight, [grad])
    vh = torch.linalg.svd(grad, full_matrices=False).Vh[:rank]
    norms = (grad @ vh.T).norm(dim=1, keepdim=True)
    torch.testing.assert_close(step, math.sqrt(rank) * grad / norms, rtol=1e-7, atol=1e-12)
    assert optimizer.state[weight]["projection"].shape == (6, rank)


@pytest.mark.parametrize("factory, rank", [(APOLLO, 4), (APOLLOMini, 1)])
def test_state_is_two_moments_and_a_norm(factory, rank) -> None:
    weight = nn.Parameter(torch.zeros(12, 30))
    optimizer = factory([weight], rank=rank)
    train(optimizer, weight, [torch.randn(12, 30)])
    state = optimizer.state[weight]
    numbers = {k: v.numel() for k, v in state.items() if isinstance(v, Tensor)}
    assert numbers == {"exp_avg": 30 * rank, "exp_avg_sq": 30 * rank, "update_norm": 1}


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"granularity": "chanel"}, "Did you mean 'channel'"),
        ({"projection": "gausian"}, "Did you mean 'gaussian'"),
        ({"keep_projection": 1}, "keep_projection must be True or False"),
        ({"scale_front": "yes"}, "scale_front must be True or False"),
        ({"rank": 2.0}, "rank must be an integer"),
        ({"rule": "adam"}, "argument 'rule'"),
        ({"update_intervall": 3}, "Did you mean 'update_interval'"),
    ],
)
@pytest.mark.parametrize("factory", [APOLLO, APOLLOMini])
def test_bad_input(factory, arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        factory([nn.Parameter(torch.zeros(6, 4))], **arguments)
