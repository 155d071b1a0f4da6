"""LOMO and AdaLomo: closed forms, edge cases, arguments."""

import pytest
import torch
from torch import nn

import memopt

FACTORIES = pytest.mark.parametrize("factory", [memopt.LOMO, memopt.AdaLomo])


def one_update(factory, weight: torch.Tensor, grad: torch.Tensor, **arguments) -> torch.Tensor:
    param = nn.Parameter(weight.clone())
    optimizer = factory([param], **arguments)
    (param * grad).sum().backward()
    optimizer.step()
    return param.detach() - weight


def test_adalomo_first_step_by_hand() -> None:
    """t = 1: b = 0, so r and c are means of g*g; the rank-1 fit, RMS clip and RMS of the weight."""
    torch.manual_seed(0)
    weight, grad = torch.randn(4, 6).double(), torch.randn(4, 6).double()
    square = grad**2 + 1e-30
    row, col = square.mean(1), square.mean(0)
    update = grad / torch.sqrt(row[:, None] * col[None, :] / row.mean())
    update = update / max(1.0, update.square().mean().sqrt())
    expected = -0.1 * weight.square().mean().sqrt() * update
    torch.testing.assert_close(one_update(memopt.AdaLomo, weight, grad, lr=0.1), expected)


def test_adalomo_decay_rate_of_the_second_moment() -> None:
    """b = 1 - t^-0.8: 0, 0.4257, 0.5848 (section 5.2); a vector shows it in full."""
    param = nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = memopt.AdaLomo([param], lr=1e-3)
    expected = 0.0
    for step, grad in enumerate((1.0, 2.0, 3.0), 1):
        (param * grad).sum().backward()
        optimizer.step()
        beta = 1 - step**-0.8
        expected = beta * expected + (1 - beta) * grad**2
        assert float(optimizer.state[param]["exp_avg_sq"]) == pytest.approx(expected, rel=1e-12)


def test_adalomo_without_grouped_normalization() -> None:
    """A vector's first u is the sign of g; the weight's RMS then has no part in it."""
    weight = torch.tensor([5.0, -5.0])
    grad = torch.tensor([0.3, -0.2])
    change = one_update(memopt.AdaLomo, weight, grad, lr=0.1, grouped_normalization=False)
    torch.testing.assert_close(change, torch.tensor([-0.1, 0.1]))
    change = one_update(memopt.AdaLomo, weight, grad, lr=0.1)
    torch.testing.assert_close(change, torch.tensor([-0.5, 0.5]))


def test_adalomo_is_free_of_the_loss_s_scale() -> None:
    torch.manual_seed(0)
    weight, grad = torch.randn(5, 3), torch.randn(5, 3)
    plain = one_update(memopt.AdaLomo, weight, grad, lr=0.1)
    scaled = one_update(memopt.AdaLomo, weight, grad * 1024, lr=0.1)  # official default: 2^10
    torch.testing.assert_close(plain, scaled)


@FACTORIES
@pytest.mark.parametrize("shape", [(), (3,), (3, 2), (2, 3, 4), (2, 2, 3, 3)])
def test_zero_gradient_changes_nothing(factory, shape) -> None:
    change = one_update(factory, torch.ones(shape), torch.zeros(shape), lr=0.1)
    assert torch.equal(change, torch.zeros(shape))


def test_rows_without_tokens_stay() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(10, 4)
    before = embedding.weight.detach().clone()
    optimizer = memopt.AdaLomo(embedding.parameters(), lr=0.1)
    for _ in range(20):
        embedding(torch.tensor([1, 3])).square().sum().backward()
        optimizer.step()
    changed = (embedding.weight != before).any(1)
    assert changed.nonzero().flatten().tolist() == [1, 3]


def test_lomo_has_no_state_but_its_counter() -> None:
    param = nn.Parameter(torch.ones(3, 3))
    optimizer = memopt.LOMO([param], lr=0.1)
    param.sum().backward()
    optimizer.step()
    assert optimizer.state[param] == {"step": 1}


@FACTORIES
def test_groups_keep_their_own_rate_and_decay(factory) -> None:
    slow, fast = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    optimizer = factory(
        [{"params": [slow], "lr": 0.0}, {"params": [fast], "weight_decay": 0.5}], lr=0.1
    )
    (slow.sum() + fast.sum()).backward()
    optimizer.step()
    assert torch.equal(slow.detach(), torch.ones(2, 2))
    # the update is 0.1 for both methods (RMS of ones is 1), the decay 0.1 * 0.5 of one
    torch.testing.assert_close(fast.detach(), torch.full((2, 2), 1 - 0.1 - 0.05))


@FACTORIES
def test_non_contiguous_weights(factory) -> None:
    torch.manual_seed(0)
    dense = torch.randn(6, 4)
    grad = torch.randn(6, 4)
    strided = dense.t().contiguous().t()
    assert not strided.is_contiguous()
    change = one_update(factory, strided, grad, lr=0.1)
    torch.testing.assert_close(change, one_update(factory, dense, grad, lr=0.1))


@pytest.mark.parametrize(
    "factory, arguments, message",
    [
        (memopt.LOMO, {"lr": 0.1, "clip_value": 0.0}, "clip_value must be .* above zero"),
        (memopt.LOMO, {"lr": 0.1, "momentum": 0.9}, "momentum"),
        (memopt.AdaLomo, {"eps": (0.0, 1e-3)}, "eps must be two numbers above zero"),
        (memopt.AdaLomo, {"eps": 1e-8}, "eps must be two numbers above zero"),
        (memopt.AdaLomo, {"decay_rate": 0.8}, "decay_rate must be below zero"),
        (memopt.AdaLomo, {"clip_threshold": 0}, "clip_threshold must be .* above zero"),
    ],
)
def test_bad_arguments(factory, arguments, message) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        factory([nn.Parameter(torch.zeros(2))], **arguments)
