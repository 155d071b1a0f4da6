"""FOAM: its equations written out, and what it has in common with GWT."""

import pytest
import torch
from torch import nn

from memopt import FOAM, GWT
from memopt.subspaces import haar

BETAS, EPS, LR, SCALE = (0.9, 0.99), 1e-8, 0.01, 0.25


def gradients(rows: int, columns: int, count: int = 5) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(rows, columns, generator=draw, dtype=torch.float64) for _ in range(count)]


def train(optimizer: torch.optim.Optimizer, weight: nn.Parameter, grads: list) -> torch.Tensor:
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    return weight.detach()


def zeros(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(rows, columns, dtype=torch.float64))


def written_out(grads, level: int, second_moment: str, residual_scale: float, decay: float):
    """The paper's matrices: A averages blocks of columns, E repeats them."""
    rows, columns = grads[0].shape
    width = 2**level * -(-columns // 2**level)
    average = torch.zeros(width, width // 2**level, dtype=torch.float64)
    for j in range(width // 2**level):
        average[j * 2**level : (j + 1) * 2**level, j] = 1 / 2**level
    repeat = (average.T > 0).double()
    weight = torch.ones(rows, columns, dtype=torch.float64)
    m = torch.zeros(rows, width // 2**level, dtype=torch.float64)
    v = torch.zeros_like(m)
    for t, grad in enumerate(grads, start=1):
        g = torch.zeros(rows, width, dtype=torch.float64)
        g[:, :columns] = grad
        residual = residual_scale * (g - g @ average @ repeat)
        square = (g @ average) ** 2 if second_moment == "paper" else g**2 @ average
        m = BETAS[0] * m + (1 - BETAS[0]) * g @ average
        v = BETAS[1] * v + (1 - BETAS[1]) * square
        step = (m @ repeat + residual) / ((v @ repeat + residual**2).sqrt() + EPS)
        c_t = (1 - BETAS[1] ** t) ** 0.5 / (1 - BETAS[0] ** t)
        weight = (weight - LR * SCALE * c_t * step[:, :columns]) * (1 - LR * decay)
    return weight


@pytest.mark.parametrize("second_moment", ["official", "paper"])
@pytest.mark.parametrize("level", [0, 1, 2, 4])
@pytest.mark.parametrize("shape", [(5, 16), (3, 13)])  # 13: padded, and cut again
def test_equations(shape, level, second_moment) -> None:
    grads = gradients(*shape)
    weight = nn.Parameter(torch.ones(shape, dtype=torch.float64))
    options = {"second_moment": second_moment, "residual_scale": 0.7, "weight_decay": 0.1}
    optimizer = FOAM([weight], LR, level=level, betas=BETAS, eps=EPS, **options)
    expected = written_out(grads, level, second_moment, 0.7, 0.1)
    # float64 sums in another order
    torch.testing.assert_close(train(optimizer, weight, grads), expected, rtol=1e-12, atol=1e-14)


def test_level_0_is_adam() -> None:
    ours, theirs = zeros(4, 6), zeros(4, 6)
    first = FOAM([ours], LR, level=0, scale=1.0, betas=BETAS, eps=0.0)
    second = torch.optim.Adam([theirs], LR, betas=BETAS, eps=0.0)
    got, expected = (train(o, w, gradients(4, 6)) for o, w in ((first, ours), (second, theirs)))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


# ---- beside GWT ----------------------------------------------------------------------------


def gwt(weight: nn.Parameter, level: int, eps: float = 0.0) -> GWT:
    return GWT([weight], LR, level=level, scale=SCALE, norm_growth_limit=None, betas=BETAS, eps=eps)


@pytest.mark.parametrize("second_moment", ["official", "paper"])
@pytest.mark.parametrize("level", [1, 3])
def test_gradients_constant_in_each_block_make_gwts_step_times_a_factor(
    level, second_moment
) -> None:
    # no detail, no residual; A of Haar is 2^(L/2) times the mean, so that its M / sqrt(V) is the
    # same, and Haar's inverse spreads it with the factor 2^(-L/2)
    grads = [g.repeat_interleave(2**level, dim=1) for g in gradients(4, 3)]
    ours, theirs = zeros(4, 3 * 2**level), zeros(4, 3 * 2**level)
    foam = FOAM([ours], LR, level=level, betas=BETAS, eps=0.0, second_moment=second_moment)
    got, expected = train(foam, ours, grads), train(gwt(theirs, level), theirs, grads)
    torch.testing.assert_close(got, 2 ** (level / 2) * expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("columns", [16, 13])
def test_the_numerator_is_haars_inverse_of_gwts_momentum_and_details(columns) -> None:
    level, grads = 2, gradients(4, columns)
    ours, theirs = zeros(4, columns), zeros(4, columns)
    foam = FOAM([ours], LR, level=level, scale=SCALE, betas=BETAS, eps=0.0)
    haars = gwt(theirs, level)
    before = train(foam, ours, grads[:-1]).clone()
    moved = before - train(foam, ours, grads[-1:])
    train(haars, theirs, grads)
    _, details = haar.forward(grads[-1], level)
    numerator = haar.inverse(haars.state[theirs]["exp_avg"], details, columns)

    def repeated(key: str) -> torch.Tensor:
        return foam.state[ours][key].repeat_interleave(2**level, dim=1)[:, :columns]

    residual = numerator - repeated("exp_avg")
    c_t = (1 - BETAS[1] ** len(grads)) ** 0.5 / (1 - BETAS[0] ** len(grads))
    expected = LR * SCALE * c_t * numerator / (repeated("exp_avg_sq") + residual**2).sqrt()
    torch.testing.assert_close(moved, expected, rtol=1e-10, atol=1e-14)


def test_a_residual_alone_moves_every_weight_by_one_step_where_gwt_divides_by_eps() -> None:
    # signs alternate along the row: every block's mean is zero
    grad = 1e-3 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(4, 8)
    c_1 = (1 - BETAS[1]) ** 0.5 / (1 - BETAS[0])
    ours, theirs = zeros(4, 16), zeros(4, 16)
    foam = FOAM([ours], LR, level=2, scale=SCALE, betas=BETAS, eps=0.0, second_moment="paper")
    expected = -LR * SCALE * c_1 * grad.sign()
    torch.testing.assert_close(train(foam, ours, [grad]), expected)
    # with GWT's default eps 1e-6 a gradient of 1e-3 takes a thousand such steps at once
    expected = -LR * SCALE * c_1 * grad / 1e-6
    torch.testing.assert_close(train(gwt(theirs, 2, eps=1e-6), theirs, [grad]), expected)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"level": -1}, "level must be an integer of 0 to 16, got -1"),
        ({"level": 2.0}, "level"),
        ({"scale": 0.0}, "scale"),
        ({"residual_scale": -1.0}, "residual_scale must be a finite number of zero or more"),
        ({"second_moment": "papr"}, "Did you mean 'paper'"),
        ({"storage": "4bit"}, "storage"),
    ],
)
def test_bad_arguments(arguments, words) -> None:
    with pytest.raises(ValueError, match=words):
        FOAM([zeros(4, 4)], **arguments)


def test_the_official_groups_key_is_accepted() -> None:
    optimizer = FOAM([{"params": [zeros(4, 4)], "level": 1, "scale": 0.5, "res_scale": 0.3}])
    assert optimizer.param_groups[0]["residual_scale"] == 0.3
