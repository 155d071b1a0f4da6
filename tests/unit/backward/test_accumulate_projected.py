"""AdamA's timing lent to GaLore and COAP, held against the equations written out in plain torch."""

import pytest
import torch
from torch import Tensor, nn

import memopt

from . import toys

BETAS, EPS, LR = (0.9, 0.999), 1e-6, 0.02
ROWS, COLUMNS, RANK = 9, 6, 3


def micro_gradients(shape: tuple[int, ...], steps: int, count: int) -> Tensor:
    """(step, micro-batch, *shape) in float64."""
    draw = torch.Generator().manual_seed(3)
    return torch.randn((steps, count, *shape), generator=draw, dtype=torch.float64)


def run(optimizer: torch.optim.Optimizer, weight: nn.Parameter, grads: Tensor) -> None:
    for parts in grads:
        for grad in parts:
            (weight * grad).sum().backward()
            assert weight.grad is None
        optimizer.step()
        optimizer.zero_grad()


def timed(
    name: str, shape: tuple[int, ...], **arguments
) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))
    factory = {"galore": memopt.GaLore, "coap": memopt.COAP}[name]
    optimizer = factory([("weight", weight)], lr=LR, betas=BETAS, eps=EPS, **arguments)
    memopt.accumulate_in_backward(optimizer)
    return weight, optimizer


def adam_step(weight: Tensor, m: Tensor, v: Tensor, t: int, back) -> None:
    """Bias correction as one scalar, eps not rescaled (the official codes)."""
    rate = LR * (1 - BETAS[1] ** t) ** 0.5 / (1 - BETAS[0] ** t)
    weight -= rate * back(m / (v.sqrt() + EPS))


def fold(parts: list[Tensor], m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    m, v = BETAS[0] * m, BETAS[1] * v
    for part in parts:
        m, v = m + (1 - BETAS[0]) * part, v + (1 - BETAS[1]) * part**2
    return m, v


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("count", [1, 3])
def test_galore(side, count) -> None:
    """Steps 1, 3 and 5 take their basis from the first of the micro-gradients alone."""
    grads = micro_gradients((ROWS, COLUMNS), 5, count)
    weight, optimizer = timed(
        "galore", (ROWS, COLUMNS), rank=RANK, update_interval=2, side=side, scale=0.25
    )
    plain = weight.detach().clone()
    m = v = torch.zeros((ROWS, RANK) if side == "right" else (RANK, COLUMNS)).double()
    for t, parts in enumerate(grads, 1):
        if t % 2 == 1:
            u, _, vh = torch.linalg.svd(parts[0], full_matrices=False)
            p = vh[:RANK].T if side == "right" else u[:, :RANK]
        low = [g @ p if side == "right" else p.T @ g for g in parts]
        m, v = fold(low, m, v)
        adam_step(
            plain,
            m,
            v,
            t,
            lambda r: 0.25 * (r @ p.T if side == "right" else p @ r),  # noqa: B023
        )
    run(optimizer, weight, grads)
    torch.testing.assert_close(weight.detach(), plain, rtol=1e-9, atol=1e-12)
    assert toys.steps_of(optimizer) == {5}


def eq_6(grad: Tensor, p: Tensor) -> Tensor:
    q, _ = torch.linalg.qr(grad @ p)
    return torch.linalg.svd(q.T @ grad, full_matrices=False)[2].T


def eq_5(grad: Tensor, p: Tensor, m: Tensor) -> Tensor:
    """One step of rate 0.1 on the paper's objective, its gradient (by autograd) clipped to 1."""
    p = p.clone().requires_grad_()
    cosine = torch.nn.functional.cosine_similarity(m @ p.T, grad, dim=1).mean()
    (slope,) = torch.autograd.grad((grad @ p @ p.T - grad).square().mean() * (1 - cosine), p)
    return (p - 0.1 * slope * min(1.0, 1.0 / (float(slope.norm()) + 1e-6))).detach()


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_coap(rotate, count) -> None:
    """Eq. 5 (step 3), Eq. 6 (steps 1 and 5) and the rotation see the first micro-gradient, and
    the first moment as the mini-batch before left it."""
    grads = micro_gradients((ROWS, COLUMNS), 6, count)
    weight, optimizer = timed(
        "coap", (ROWS, COLUMNS), rank=RANK, update_interval=2, recalibrate_every=2,
        rotate_moments=rotate,
    )  # fmt: skip
    plain = weight.detach().clone()
    seed = memopt.seeds.generator(3407, "weight", 0)
    p = torch.randn(COLUMNS, RANK, generator=seed, dtype=torch.float64)
    m = v = torch.zeros(ROWS, RANK, dtype=torch.float64)
    for t, parts in enumerate(grads, 1):
        if t % 2 == 1:
            new = eq_5(parts[0], p, m) if t == 3 else eq_6(parts[0], p)
            if rotate and t > 1:
                m, v = m @ p.T @ new, (v.sqrt() @ p.T @ new) ** 2
            p = new
        m, v = fold([g @ p for g in parts], m, v)
        adam_step(plain, m, v, t, lambda r: r @ p.T)  # noqa: B023
    run(optimizer, weight, grads)
    torch.testing.assert_close(weight.detach(), plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_coap_convolution(count, monkeypatch) -> None:
    """The Tucker-2 core takes the place of R; the bases come from the first micro-gradient."""
    monkeypatch.setattr(memopt.subspaces.tucker, "PLAIN_ELEMENTS", 1)
    shape, sizes = (8, 6, 3, 3), {0: 4, 1: 3}
    grads = micro_gradients(shape, 3, count)
    weight, optimizer = timed("coap", shape, rank_ratio=4.0, update_interval=2, recalibrate_every=1)
    plain = weight.detach().clone()
    m = v = torch.zeros(4, 3, 3, 3, dtype=torch.float64)
    for t, parts in enumerate(grads, 1):
        if t % 2 == 1:
            bases = memopt.subspaces.tucker.decompose(parts[0], sizes)
            o, i = bases[0], bases[1]
        m, v = fold([torch.einsum("oikl,oa,ib->abkl", g, o, i) for g in parts], m, v)
        adam_step(
            plain, m, v, t,
            lambda core: torch.einsum("abkl,oa,ib->oikl", core, o, i),  # noqa: B023
        )  # fmt: skip
    run(optimizer, weight, grads)
    torch.testing.assert_close(weight.detach(), plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ["adafactor", "adam_mini", "muon"])
def test_other_rules_see_the_sum(rule) -> None:
    """They keep sum_i G_i P, so on one basis they do what they do with summed gradients."""
    grads = micro_gradients((ROWS, COLUMNS), 4, 3)
    grads[0, 1:] = 0  # the only refresh, at step 1, sees the same gradient both ways
    arguments = {"rank": RANK, "update_interval": 100, "rule": rule}
    weight, optimizer = timed("galore", (ROWS, COLUMNS), **arguments)
    twin, ordinary = timed("galore", (ROWS, COLUMNS), **arguments)
    ordinary.timing.remove()
    for parts in grads:
        twin.grad = parts.sum(0)
        ordinary.step()
    run(optimizer, weight, grads)
    torch.testing.assert_close(weight, twin, rtol=1e-9, atol=1e-12)
    assert "held" not in optimizer.state[weight]


def test_the_refresh_differs_from_that_of_summed_gradients() -> None:
    """The price of the rule, not a rounding: a basis of one micro-gradient is another basis."""
    grads = micro_gradients((ROWS, COLUMNS), 1, 3)
    weight, optimizer = timed("galore", (ROWS, COLUMNS), rank=RANK)
    run(optimizer, weight, grads)
    basis = optimizer.state[weight]["projection"]
    whole = torch.linalg.svd(grads[0].sum(0), full_matrices=False)[2][:RANK].T
    assert float((basis.T @ whole).square().sum()) < RANK - 0.1


def test_nothing_but_low_rank_coordinates_stays_between_micro_batches() -> None:
    weight, optimizer = timed("galore", (64, 48), rank=RANK, rule="muon")
    (weight * torch.randn(64, 48, dtype=torch.float64)).sum().backward()
    state = optimizer.state[weight]
    kept = {key: tuple(value.shape) for key, value in state.items() if key != "step"}
    assert kept == {"projection": (48, RANK), "exp_avg": (64, RANK), "held": (64, RANK)}
    assert weight.grad is None
