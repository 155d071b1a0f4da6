"""LoRA-Pre: its equations written out in float64, what the algebra says, and bad input."""

import pytest
import torch
from torch import Tensor, nn

import memopt
from memopt.seeds import generator

BETAS = (0.8, 0.95)


def written_out(
    weight: Tensor, grads: list[Tensor], rank: int, factors: str, damping: float
) -> Tensor:
    """The method by explicit inverses, lr 0.1, eps 1e-5, decay 0.2; a weight named ``w``."""
    (b1, b2), (rows, columns) = BETAS, weight.shape
    keep1, keep2 = b1**0.5, b2**0.25
    eye = damping * torch.eye(rank, dtype=torch.float64)
    first = [torch.zeros(rows, rank, dtype=torch.float64)]
    second = [first[0].clone()]
    for factor, moment in ((first, "exp_avg"), (second, "exp_avg_sq")):
        draw = torch.randn(rank, columns, generator=generator(0, "w", moment))
        factor.append((0.02 * draw).double())

    def moved(pair: list[Tensor], target: Tensor, keep: float) -> list[Tensor]:
        left, right = pair
        return [
            keep * left + (1 - keep) * target @ right.T @ torch.linalg.inv(right @ right.T + eye),
            keep * right + (1 - keep) * torch.linalg.inv(left.T @ left + eye) @ left.T @ target,
        ]

    for t, grad in enumerate(grads, 1):
        new_first, new_second = moved(first, grad, keep1), moved(second, grad.abs(), keep2)
        if factors == "new":
            first, second = new_first, new_second
        m = b1 * first[0] @ first[1] + (1 - b1) * grad
        v = b2 * (second[0] @ second[1]) ** 2 + (1 - b2) * grad**2
        first, second = new_first, new_second
        weight = weight * (1 - 0.1 * 0.2)
        weight = weight - 0.1 * (m / (1 - b1**t)) / ((v / (1 - b2**t)).sqrt() + 1e-5)
    return weight


def run(weight: nn.Parameter, grads: list[Tensor], **arguments) -> memopt.LoRAPre:
    optimizer = memopt.LoRAPre(
        [("w", weight)], **{"lr": 0.1, "betas": BETAS, "eps": 1e-5, **arguments}
    )
    for grad in grads:
        weight.grad = grad.reshape(weight.shape)
        optimizer.step()
    return optimizer


@pytest.mark.parametrize("factors", ["old", "new"])
@pytest.mark.parametrize(("shape", "rank"), [((9, 5), 2), ((4, 11), 3), ((6, 6), 6)])
def test_equations(shape, rank, factors) -> None:
    start = torch.randn(shape, dtype=torch.float64)
    grads = [torch.randn(shape, dtype=torch.float64) for _ in range(7)]
    weight = nn.Parameter(start.clone())
    run(weight, grads, rank=rank, factors=factors, damping=0.01, weight_decay=0.2)
    expected = written_out(start, grads, rank, factors, 0.01)
    # the initial factors are drawn in float32, the rest is float64
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-10)


def test_first_step_is_adams_with_old_factors() -> None:
    """The factors before it multiply to zero: m = (1-b1) G, v = (1-b2) G^2."""
    weight, twin = (nn.Parameter(torch.ones(7, 4, dtype=torch.float64)) for _ in range(2))
    grads = [torch.randn(7, 4, dtype=torch.float64)]
    run(weight, grads, rank=2)
    adam = torch.optim.Adam([twin], lr=0.1, betas=BETAS, eps=1e-5)
    twin.grad = grads[0]
    adam.step()
    torch.testing.assert_close(weight, twin, rtol=1e-12, atol=1e-12)


def products(optimizer: memopt.LoRAPre, weight: nn.Parameter, moment: str = "exp_avg") -> Tensor:
    state = optimizer.state[weight]
    return state[f"{moment}_left"] @ state[f"{moment}_right"]


def test_full_rank_is_the_exponential_mean_up_to_the_square_of_the_step() -> None:
    """m' = b m + (1 - b - g^2) G + g^2 G m^-1 G for square factors and no damping.

    From the two updates: the projections on the spans of the factors are the identity there, and
    (1-g)^2 = b. So even at full rank the mean is not Adam's, but close: g^2 is 0.0026 for b 0.9.
    """
    weight = nn.Parameter(torch.zeros(5, 5, dtype=torch.float64))
    base = 5 * torch.eye(5, dtype=torch.float64)
    grads = [base + 0.3 * torch.randn(5, 5, dtype=torch.float64) for _ in range(6)]
    optimizer = run(weight, grads[:-1], rank=5, damping=1e-12)
    before, grad, beta = products(optimizer, weight), grads[-1], BETAS[0]
    step = 1 - beta**0.5
    expected = beta * before + (1 - beta - step**2) * grad
    expected += step**2 * grad @ torch.linalg.inv(before) @ grad
    weight.grad = grad
    optimizer.step()
    torch.testing.assert_close(products(optimizer, weight), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("strength", "left"), [(3.0, 3.0 - 0.25), (0.2, 0.0)])
def test_damping_is_a_threshold_on_singular_values(strength, left) -> None:
    """A constant gradient s u w^T settles at (s - d) u w^T, and at nothing where s < d.

    The fixed point of both updates is b (a^2 + d) = s a and a (b^2 + d) = s b, so a = b.
    """
    u = nn.functional.normalize(torch.randn(6, 1, dtype=torch.float64), dim=0)
    w = nn.functional.normalize(torch.randn(4, 1, dtype=torch.float64), dim=0)
    weight = nn.Parameter(torch.zeros(6, 4, dtype=torch.float64))
    optimizer = run(weight, [strength * u @ w.T] * 400, rank=2, damping=0.25)
    torch.testing.assert_close(products(optimizer, weight), left * u @ w.T, rtol=1e-6, atol=1e-6)


def test_a_constant_gradient_of_low_rank_gives_adams_direction() -> None:
    """In the end m = G and v = G^2: every weight moves by the rate, against the sign."""
    grad = torch.randn(8, 1, dtype=torch.float64) @ torch.randn(1, 5, dtype=torch.float64)
    weight = nn.Parameter(torch.zeros(8, 5, dtype=torch.float64))
    optimizer = run(weight, [grad] * 400, rank=1, damping=1e-9)
    before = weight.detach().clone()
    weight.grad = grad
    optimizer.step()
    torch.testing.assert_close(before - weight.detach(), 0.1 * grad.sign(), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("step", [1, 10, 100, 400])
def test_early_steps_are_longer_than_adams(step) -> None:
    """v starts as the square of a slow mean of |G|, far below Adam's mean of G^2.

    Against a constant gradient of 1, where Adam moves by the rate: the factors are two numbers.
    """
    weight = nn.Parameter(torch.zeros(1, 1, dtype=torch.float64))
    one = torch.ones(1, 1, dtype=torch.float64)
    options = {"rank": 1, "damping": 1e-9, "betas": (0.9, 0.999), "eps": 1e-12}
    optimizer = run(weight, [one] * (step - 1), **options)
    before = weight.item()
    weight.grad = one
    optimizer.step()
    means = []
    for keep in (0.9**0.5, 0.999**0.25):
        left, right = 0.0, 0.02
        for _ in range(step - 1):
            left, right = (
                keep * left + (1 - keep) / right,
                keep * right + ((1 - keep) / left if left else 0.0),
            )
        means.append(left * right)
    m = 0.9 * means[0] + 0.1
    v = 0.999 * means[1] ** 2 + 0.001
    length = m / (1 - 0.9**step) / (v / (1 - 0.999**step)) ** 0.5
    assert (before - weight.item()) / 0.1 == pytest.approx(length, rel=1e-3)
    # what docs/methods.md says
    assert length == pytest.approx({1: 1.0, 10: 3.2, 100: 5.3, 400: 3.1}[step], abs=0.05)


def test_initial_factors_follow_names() -> None:
    """A zero gradient leaves sqrt(b1) of the initial right factor, and of the left its zero."""
    for name in ("w", "other"):
        weight = nn.Parameter(torch.zeros(40, 60))
        optimizer = memopt.LoRAPre([(name, weight)], rank=8, betas=(0.25, 0.0), projection_seed=3)
        weight.grad = torch.zeros(40, 60)
        optimizer.step()
        draw = torch.randn(8, 60, generator=generator(3, name, "exp_avg"))
        state = optimizer.state[weight]
        torch.testing.assert_close(state["exp_avg_right"], 0.5 * 0.02 * draw)
        assert not state["exp_avg_left"].any()
        assert not torch.equal(state["exp_avg_sq_right"], state["exp_avg_right"])


def test_singular_grams_do_not_break_float32() -> None:
    """Gradients of rank one and of any size: the factors' r x r systems are nearly singular."""
    for size in (1e-8, 1.0, 1e6):
        weight = nn.Parameter(torch.zeros(12, 30))
        grad = size * torch.ones(12, 1) @ torch.randn(1, 30)
        run(weight, [grad] * 60, rank=8)
        assert weight.isfinite().all()
        # v is never below (1-b2) G^2, so no step is longer than lr / sqrt(1-b2)
        assert weight.abs().max() < 60 * 0.1 * (1 - BETAS[1]) ** -0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank must be an integer of 1 or more"),
        ({"damping": 0.0}, "damping must be a finite number above zero"),
        ({"factors": "nwe"}, "unknown factors 'nwe'. Did you mean 'new'"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"dampng": 1.0}, "unknown argument 'dampng'. Did you mean 'damping'"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        memopt.LoRAPre([nn.Parameter(torch.ones(3, 3))], **arguments)
