"""COAP against a literal second implementation, autograd, and linear algebra."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import memopt
from memopt import COAP
from memopt.seeds import generator
from memopt.subspaces import correlation

B1, B2, EPS = 0.9, 0.999, 1e-6


def draw(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=source)


def loss(basis: Tensor, grad: Tensor, exp_avg: Tensor, left: bool) -> Tensor:
    """The paper's Eq. 5 as written, for G and M as they stand in the weight's layout."""
    if left:
        rebuilt, estimate = basis @ basis.T @ grad, basis @ exp_avg
    else:
        rebuilt, estimate = grad @ basis @ basis.T, exp_avg @ basis.T
    mse = nn.functional.mse_loss(rebuilt, grad)
    # row by row, also for a left projection
    return mse * (1 - nn.functional.cosine_similarity(estimate, grad, dim=1).mean())


def recalibrated(grad: Tensor, basis: Tensor, left: bool) -> Tensor:
    """The paper's Eq. 6: QR of G P, then the right singular vectors of Q^T G."""
    matrix = grad.T if left else grad
    q, _ = torch.linalg.qr(matrix @ basis, mode="reduced")
    return torch.linalg.svd(q.T @ matrix, full_matrices=False).Vh.T


def oracle(
    weight: Tensor, grads: list[Tensor], sketch: Tensor, *, interval: int, every: int,
    variant: str, rotate: bool, lr: float, scale: float, decay: float,
) -> list[Tensor]:  # fmt: skip
    """Section "one step" of the method, by autograd and explicit loops, in t = 0, 1, ..."""
    left = weight.shape[0] < weight.shape[1]
    weight, trajectory = weight.clone(), []
    basis = exp_avg = exp_avg_sq = None
    for t, grad in enumerate(grads):
        old = basis
        if basis is None:
            basis = recalibrated(grad, sketch, left)
        elif t % interval == 0 and t % (every * interval) == 0:
            basis = recalibrated(grad, basis, left)
        elif t % interval == 0 and variant != "off":
            unit = (
                (lambda x: x / x.square().mean().sqrt())
                if variant == "normalised"
                else (lambda x: x)
            )
            variable = nn.Parameter(basis.clone())
            loss(variable, unit(grad), unit(exp_avg), left).backward()
            nn.utils.clip_grad_norm_([variable], 1.0)
            basis = (variable - 0.1 * variable.grad).detach()
        if rotate and old is not None and t % interval == 0:
            if left:
                exp_avg = basis.T @ (old @ exp_avg)
                exp_avg_sq = (basis.T @ (old @ exp_avg_sq.sqrt())) ** 2
            else:
                exp_avg = (exp_avg @ old.T) @ basis
                exp_avg_sq = ((exp_avg_sq.sqrt() @ old.T) @ basis) ** 2
        low = basis.T @ grad if left else grad @ basis
        if exp_avg is None:
            exp_avg, exp_avg_sq = torch.zeros_like(low), torch.zeros_like(low)
        exp_avg = B1 * exp_avg + (1 - B1) * low
        exp_avg_sq = B2 * exp_avg_sq + (1 - B2) * low * low
        direction = exp_avg / (exp_avg_sq.sqrt() + EPS)
        correction = math.sqrt(1 - B2 ** (t + 1)) / (1 - B1 ** (t + 1))
        back = basis @ direction if left else direction @ basis.T
        weight = weight - lr * correction * scale * back
        weight = weight - lr * decay * weight
        trajectory.append(weight)
    return trajectory


@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("variant", ["official", "normalised", "off"])
@pytest.mark.parametrize("shape", [(9, 6), (6, 9), (7, 7)])
def test_equals_a_literal_implementation(shape, variant, rotate) -> None:
    start, rank = draw(*shape, seed=1), 3
    grads = [draw(*shape, seed=10 + t) for t in range(12)]
    reduced = min(shape)
    sketch = torch.randn(
        reduced, rank, dtype=torch.float64, generator=generator(3407, "layer.weight", 0)
    )
    settings_ = {"lr": 0.05, "scale": 0.25}
    expected = oracle(
        start, grads, sketch, interval=2, every=2, variant=variant, rotate=rotate, decay=0.1,
        **settings_,
    )  # fmt: skip
    weight = nn.Parameter(start.clone())
    optimizer = COAP(
        [("layer.weight", weight)],
        rank=rank, update_interval=2, recalibrate_every=2, correlation_update=variant,
        rotate_moments=rotate, weight_decay=0.1, **settings_,
    )  # fmt: skip
    for grad, wanted in zip(grads, expected, strict=True):
        weight.grad = grad.clone()
        optimizer.step()
        # float64; clip_grad_norm_ adds 1e-6 as ours does
        torch.testing.assert_close(weight.detach(), wanted, rtol=1e-9, atol=1e-10)


@given(
    rows=st.integers(2, 12),
    columns=st.integers(2, 12),
    rank=st.integers(1, 12),
    left=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_analytic_gradient_equals_autograd(rows, columns, rank, left, seed) -> None:
    grad = draw(rows, columns, seed=seed)
    reduced, kept = (rows, columns) if left else (columns, rows)
    rank = min(rank, reduced)
    # P need not be orthonormal: it drifts between recalibrations
    variable = nn.Parameter(draw(reduced, rank, seed=seed + 1) / math.sqrt(reduced))
    exp_avg = draw(*((rank, kept) if left else (kept, rank)), seed=seed + 2)
    value = loss(variable, grad, exp_avg, left)
    value.backward()
    matrix, moment = (grad.T, exp_avg.T) if left else (grad, exp_avg)
    ours = correlation.objective_gradient(matrix, variable.detach(), moment, transposed=left)
    ours_value = correlation.objective(matrix, variable.detach(), moment, transposed=left)
    torch.testing.assert_close(ours_value, value.detach(), rtol=1e-10, atol=1e-12)
    scale = float(variable.grad.abs().max())
    torch.testing.assert_close(ours, variable.grad, rtol=1e-10, atol=1e-10 * max(scale, 1.0))


@given(rows=st.integers(1, 15), columns=st.integers(1, 15), rank=st.integers(1, 15),
       seed=st.integers(0, 2**31))  # fmt: skip
def test_recalibration_spans_one_power_iteration(rows, columns, rank, seed) -> None:
    rank = min(rank, rows, columns)
    grad, old = draw(rows, columns, seed=seed), draw(columns, rank, seed=seed + 1)
    new = correlation.sketch_basis(grad, old)
    torch.testing.assert_close(new.T @ new, torch.eye(rank, dtype=torch.float64))
    wanted, _ = torch.linalg.qr(grad.T @ (grad @ old))  # G^T G P, same span
    # equal spans have equal projectors; the condition number of G^T G P costs digits
    condition = float(torch.linalg.cond(grad.T @ (grad @ old)))
    torch.testing.assert_close(
        new @ new.T, wanted @ wanted.T, rtol=0, atol=1e-14 * max(condition, 1e3)
    )


def test_recalibration_is_the_identity_on_a_gradient_of_low_rank() -> None:
    grad = draw(20, 4, seed=1) @ draw(4, 15, seed=2)
    basis = correlation.sketch_basis(grad, draw(15, 4, seed=3))
    torch.testing.assert_close(grad @ basis @ basis.T, grad, rtol=0, atol=1e-10)


@pytest.mark.parametrize("grad", [torch.zeros(8, 6), torch.ones(8, 6), torch.eye(8, 6)])
def test_degenerate_gradients_have_an_orthonormal_basis(grad) -> None:
    basis = correlation.sketch_basis(grad.double(), draw(6, 3, seed=1))
    torch.testing.assert_close(basis.T @ basis, torch.eye(3, dtype=torch.float64))


BOUNDS = {"float32": 1e-5, "bfloat16": 5e-2, "8bit": 1e-5}


@pytest.mark.parametrize("storage, bound", BOUNDS.items())
@pytest.mark.parametrize("shape", [(96, 64), (64, 96)])
def test_basis_stays_orthonormal(shape, storage, bound) -> None:
    # after a recalibration: rounding of the stored format, |P^T P - I|_F for 16 columns
    weight = nn.Parameter(torch.zeros(shape))
    optimizer = COAP(
        [weight], rank=16, update_interval=2, recalibrate_every=1, storage=storage, lr=1e-3
    )
    for seed in range(9):
        weight.grad = 1e-3 * draw(*shape, seed=seed).float()
        optimizer.step()
    basis = optimizer.state[weight]["projection"].double()
    assert not basis.requires_grad
    assert float((basis.T @ basis - torch.eye(16, dtype=torch.float64)).norm()) < bound


@given(
    rows=st.integers(4, 24), columns=st.integers(4, 24), left=st.booleans(),
    exponent=st.integers(-8, 0), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_normalised_step_lowers_the_objective_at_every_scale(
    rows, columns, left, exponent, seed
) -> None:
    size = 10.0**exponent  # gradients of language models: 1e-5 to 1e-3
    grad = size * draw(rows, columns, seed=seed)
    reduced = rows if left else columns
    rank = max(1, min(rows, columns) // 2)
    basis, _ = torch.linalg.qr(draw(reduced, rank, seed=seed + 1))
    earlier = grad + size * draw(rows, columns, seed=seed + 2)
    matrix, earlier = (grad.T, earlier.T) if left else (grad, earlier)
    exp_avg = earlier @ basis
    new = correlation.correlation_step(
        matrix, basis, exp_avg, transposed=left, variant="normalised"
    )
    unit = (matrix / matrix.square().mean().sqrt(), exp_avg / exp_avg.square().mean().sqrt())
    before = correlation.objective(unit[0], basis, unit[1], transposed=left)
    after = correlation.objective(unit[0], new, unit[1], transposed=left)
    assert after < before
    # and the step is the same whatever the scale of the gradient
    again = correlation.correlation_step(
        1e3 * matrix, basis, 1e3 * exp_avg, transposed=left, variant="normalised"
    )
    torch.testing.assert_close(new, again, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale, dtype", [(1e-2, torch.bfloat16), (1e-4, torch.float32)])
def test_official_step_is_lost_in_rounding_at_language_model_scales(scale, dtype) -> None:
    grad = scale * draw(256, 128, seed=1)
    basis, _ = torch.linalg.qr(draw(128, 32, seed=2))
    exp_avg = grad @ basis
    moved = {
        variant: float((correlation.correlation_step(
            grad, basis, exp_avg, transposed=False, variant=variant) - basis).norm() / basis.norm())
        for variant in ("official", "normalised", "off")
    }  # fmt: skip
    assert moved["off"] == 0
    assert moved["official"] < torch.finfo(dtype).eps
    assert moved["normalised"] > 1e-4


@pytest.mark.parametrize(
    "shape, ratio, rank",
    [((9, 6), 2, 3), ((9, 6), 4, 1), ((9, 6), 100, 1), ((6, 9), 1.5, 4), ((9, 6), 1, 6)],
)
def test_rank_ratio(shape, ratio, rank) -> None:
    weight = nn.Parameter(torch.zeros(shape))
    optimizer = COAP([weight], rank_ratio=ratio)
    weight.grad = draw(*shape).float()
    optimizer.step()
    assert optimizer.state[weight]["projection"].shape == (6, rank)
    kept = (9, rank) if shape[0] >= shape[1] else (rank, 9)
    assert optimizer.state[weight]["exp_avg"].shape == kept


def test_a_matrix_below_the_rank_gets_plain_adam_at_the_full_rate() -> None:
    small, large = nn.Parameter(draw(12, 4)), nn.Parameter(draw(12, 8))
    twin = nn.Parameter(small.detach().clone())
    optimizer = COAP([small, large], rank=4, scale=0.25, lr=0.1, eps=0.0)
    adam = torch.optim.Adam([twin], lr=0.1, eps=0.0)
    for seed in range(4):
        small.grad = draw(12, 4, seed=seed)
        large.grad, twin.grad = draw(12, 8, seed=seed), small.grad
        optimizer.step()
        adam.step()
    assert "projection" not in optimizer.state[small]
    assert "projection" in optimizer.state[large]
    torch.testing.assert_close(small.detach(), twin.detach(), rtol=1e-12, atol=1e-12)


def named(names: list[str]) -> list[tuple[str, nn.Parameter]]:
    return [(name, nn.Parameter(torch.zeros(10, 8))) for name in names]


def updates(names: list[str], **arguments) -> dict[str, Tensor]:
    params = named(names)
    optimizer = COAP(params, rank=3, update_interval=2, recalibrate_every=2, **arguments)
    for step in range(5):
        for name, param in params:
            param.grad = draw(10, 8, seed=step * 1000 + sum(map(ord, name))).float()
        optimizer.step()
    return {name: param.detach() for name, param in params}


def test_seeds_follow_names_not_positions() -> None:
    few = updates(["q", "k", "v"])
    many = updates(["new", "v", "other", "k", "q"])
    assert all(torch.equal(few[name], many[name]) for name in few)
    other_seed = updates(["q", "k", "v"], projection_seed=1)
    assert not torch.equal(few["q"], other_seed["q"])


def test_groups_in_the_form_of_the_official_example() -> None:
    # linear layers with a rank, the rest without one: plain Adam
    matrix, vector = nn.Parameter(torch.zeros(10, 8)), nn.Parameter(torch.zeros(10))
    table = nn.Parameter(torch.zeros(20, 8))
    optimizer = COAP([{"params": [matrix], "rank": 3}, {"params": [vector, table]}])
    assert [param is matrix for _, param in optimizer.treated_parameters()] == [True]


@settings(max_examples=15)
@given(rank=st.integers(1, 12), rows=st.integers(2, 10), columns=st.integers(2, 10),
       side=st.sampled_from(["std", "reverse_std", "left", "right"]))  # fmt: skip
def test_every_side_and_rank_steps(rank, rows, columns, side) -> None:
    for method, arguments in (("galore", {"rank": rank}), ("coap", {"rank_ratio": 12 / rank})):
        weight = nn.Parameter(torch.zeros(rows, columns))
        factory = memopt.catalog.get(method).load()
        optimizer = factory([weight], side=side, update_interval=1, **arguments)
        for seed in range(3):
            weight.grad = draw(rows, columns, seed=seed).float()
            optimizer.step()
        assert weight.isfinite().all() and weight.any()
