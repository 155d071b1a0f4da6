"""Flora against its equations in float64, transformers' Adafactor, and expectations over seeds."""

import hashlib
import math

import pytest
import torch
from torch import Tensor, nn

import memopt
from memopt import Flora
from memopt.optimizers.flora import transferred
from tests.unit.optimizers.growing import draw, train

SHAPES = [(11, 5), (5, 11), (6, 6)]
NAME = "layers.3.mlp.weight"


def gradients(shape: tuple[int, ...], steps: int = 8) -> list[Tensor]:
    return [draw(*shape, seed=step) * (1 + step % 3) for step in range(steps)]


def projection(length: int, rank: int, *number: str | int, name: str = NAME) -> Tensor:
    """The documented draw, (r, length) as the paper writes A."""
    digest = hashlib.sha256("/".join(map(str, (0, name, *number))).encode()).digest()
    source = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return (torch.randn(length, rank, generator=source) * rank**-0.5).double().T


def literal(
    weight: Tensor, grads: list[Tensor], *, rank: int, kappa: int, momentum: str, lr: float,
    decay: float, scale_parameter: bool,
) -> Tensor:  # fmt: skip
    """Adafactor element by element, momentum M A by the paper's formulas, for m >= n."""
    wide = weight.shape[0] < weight.shape[1]
    weight = (weight.T if wide else weight).clone()
    rows, columns = weight.shape
    r, c = torch.zeros(rows, dtype=torch.float64), torch.zeros(columns, dtype=torch.float64)
    m, a = torch.zeros(rows, rank, dtype=torch.float64), projection(columns, rank, 0)
    for t, grad in enumerate(grads, start=1):
        g = grad.T if wide else grad
        b2 = 1 - t**-0.8
        square = g * g + 1e-30
        r, c = b2 * r + (1 - b2) * square.mean(1), b2 * c + (1 - b2) * square.mean(0)
        u = g / torch.sqrt(torch.outer(r, c) / r.mean())
        update = 0.1 * u + 0.9 * m @ a
        if t % kappa == 0:
            new = projection(columns, rank, t // kappa)
            m, a = m @ a @ new.T, new
        m = 0.9 * m + 0.1 * u @ a.T
        if momentum == "paper":
            update = m @ a
        update = update / max(1.0, float(update.square().mean().sqrt()))
        rate = lr * max(1e-3, float(weight.square().mean().sqrt())) if scale_parameter else lr
        weight = weight * (1 - rate * decay) - rate * update
    return weight.T if wide else weight


@pytest.mark.parametrize("scale_parameter", [True, False])
@pytest.mark.parametrize("momentum", ["official", "paper"])
@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_equations(shape, rank, momentum, scale_parameter) -> None:
    start = draw(*shape, seed=99)
    expected = literal(
        start, gradients(shape), rank=rank, kappa=3, momentum=momentum, lr=0.02, decay=0.1,
        scale_parameter=scale_parameter,
    )  # fmt: skip
    weight = nn.Parameter(start.clone())
    optimizer = Flora(
        [(NAME, weight)], lr=0.02, rank=rank, update_interval=3, momentum=momentum,
        scale_parameter=scale_parameter, weight_decay=0.1,
    )  # fmt: skip
    ours = train(optimizer, weight, gradients(shape))
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("shape", [(9, 5), (5, 9), (7,)])
def test_without_momentum_it_is_adafactor(shape) -> None:
    adafactor = pytest.importorskip("transformers.optimization").Adafactor
    start = draw(*shape, seed=99).float()
    results = []
    for factory, arguments in (
        (adafactor, {"relative_step": False, "scale_parameter": True}),
        (Flora, {"beta1": None}),
    ):
        weight = nn.Parameter(start.clone())
        optimizer = factory([weight], lr=0.02, weight_decay=0.1, **arguments)
        results.append(train(optimizer, weight, [g.float() for g in gradients(shape)]))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_transfer_is_right_on_average(side) -> None:
    """E[M A_old A_new^T A_new] = X for M = X A_old^T: the mean of 4000 pairs of seeds.

    Each entry within 4 standard errors, estimated from the same draws (24 entries: the chance of
    one beyond is below 0.2 %; seeds are fixed, so the test does not flicker).
    """
    x = draw(4, 6, seed=0) if side == "right" else draw(6, 4, seed=0)
    results = []
    for seed in range(4000):
        old, new = (projection(6, 3, number, name=str(seed)).T for number in (0, 1))
        m = x @ old if side == "right" else old.T @ x
        m = transferred(m, old, new, side)
        results.append(m @ new.T if side == "right" else new @ m)
    sample = torch.stack(results)
    error = sample.std(0) / math.sqrt(len(results))
    assert ((sample.mean(0) - x).abs() < 4 * error).all()
    assert (x.abs() > 8 * error).any()  # the interval tells X from nothing


@pytest.mark.parametrize(
    "shape, arguments, momentum",
    [
        ((12, 30), {}, 30 * 4),
        ((30, 12), {}, 30 * 4),
        ((8, 3, 2, 2), {}, 12 * 4),  # 8 x 12, flattened
        ((12, 30), {"beta1": None}, 0),
        ((3, 9), {}, 3 * 9),  # shorter than the rank
        ((5, 21), {}, 5 * 21),  # longer than four times its width: an embedding's shape
        ((5, 20), {}, 20 * 4),
        ((7,), {}, 7),
    ],
)
def test_state_is_the_formula(shape, arguments, momentum) -> None:
    weight = nn.Parameter(torch.randn(shape))
    optimizer = Flora([weight], lr=0.01, rank=4, **arguments)
    train(optimizer, weight, [torch.randn(shape)])
    state = optimizer.state[weight]
    numbers = {k: v.numel() for k, v in state.items() if isinstance(v, Tensor)}
    matrix = (shape[0], math.prod(shape[1:]))
    assert numbers.pop("exp_avg", 0) == momentum
    assert sum(numbers.values()) == (sum(matrix) if len(shape) > 1 else shape[0])


def test_a_group_that_is_not_treated_is_not_compressed() -> None:
    weight = nn.Parameter(torch.randn(6, 8))
    optimizer = Flora([{"params": [weight], "treated": False}], lr=0.01, rank=2)
    train(optimizer, weight, [torch.randn(6, 8)])
    assert optimizer.state[weight]["exp_avg"].shape == (6, 8)


# ---- compressed accumulation ---------------------------------------------------------------


def accumulated(weight: nn.Parameter, batches: list[list[Tensor]], **arguments) -> Tensor:
    optimizer = Flora([(NAME, weight)], lr=0.02, rank=2, update_interval=2, **arguments)
    memopt.accumulate_in_backward(optimizer)
    for micro in batches:
        for grad in micro:
            (weight * grad).sum().backward()
            assert weight.grad is None
        assert optimizer.state[weight]["held"].shape == ((11, 3) if weight.ndim > 1 else (11,))
        optimizer.step()
        assert "held" not in optimizer.state[weight]
        optimizer.zero_grad()
    return weight.detach()


@pytest.mark.parametrize("shape", [(11, 5), (11,)])
def test_accumulation_keeps_the_compressed_sum(shape) -> None:
    """The step is that on ``sum(G) A^T A`` with A new at every update; a vector's sum is exact."""
    batches = [[draw(*shape, seed=10 * step + i) for i in range(3)] for step in range(4)]
    weight = nn.Parameter(draw(*shape, seed=99))
    ours = accumulated(weight, batches, accumulation_rank=3)
    decompressed = []
    for step, micro in enumerate(batches, start=1):
        a = projection(5, 3, "sum", step)
        decompressed.append(sum(micro) @ a.T @ a if len(shape) > 1 else sum(micro))
    twin = nn.Parameter(draw(*shape, seed=99))
    optimizer = Flora([(NAME, twin)], lr=0.02, rank=2, update_interval=2)
    torch.testing.assert_close(ours, train(optimizer, twin, decompressed), rtol=1e-9, atol=1e-11)


def test_accumulation_wants_a_rank() -> None:
    optimizer = Flora([nn.Parameter(torch.zeros(6, 4))], lr=0.01, rank=2)
    with pytest.raises(memopt.UnsupportedCombination, match="give accumulation_rank"):
        memopt.accumulate_in_backward(optimizer)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"rank": 0}, "rank must be an integer of 1 or more, got 0"),
        ({"accumulation_rank": 2.0}, "accumulation_rank must be an integer"),
        ({"update_interval": 0}, "update_interval"),
        ({"beta1": 1.0}, "beta1 must be in"),
        ({"momentum": "offical"}, "Did you mean 'official'"),
        ({"eps": 1e-30}, "eps must be two numbers"),
        ({"decay_rate": 0.8}, "decay_rate must be below zero"),
        ({"kapa": 3}, "argument 'kapa'"),
    ],
)
def test_bad_input(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        Flora([nn.Parameter(torch.zeros(6, 4))], lr=0.01, **arguments)


def test_the_rate_must_be_given() -> None:
    with pytest.raises(TypeError, match="lr"):
        Flora([nn.Parameter(torch.zeros(6, 4))])
