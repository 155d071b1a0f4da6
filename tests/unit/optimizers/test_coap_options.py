"""COAP's options: Tucker-2 for convolutions, rules, rotation of moments; real gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from memopt import COAP, GaLore, UnsupportedCombination
from memopt.subspaces import correlation, tucker


def draw(*shape: int, seed: int = 0) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=source)


def orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.linalg.qr(draw(rows, columns, seed=seed))[0]


# ---- Tucker-2 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, rank, ratio, expected",
    [
        ((64, 32, 3, 3), None, 4.0, {0: 32, 1: 16}),
        ((64, 32, 3, 3), None, 2.0, {0: 45, 1: 22}),
        ((64, 32, 3, 1), None, 4.0, {0: 16}),
        ((64, 32, 1, 1), None, 1000.0, {0: 1}),
        ((64, 32, 3, 3), 48, None, {0: 48, 1: 32}),
        ((64, 32, 3, 3), None, 0.5, {0: 64, 1: 32}),
    ],
)
def test_ranks_of_the_official_code(shape, rank, ratio, expected) -> None:
    assert tucker.ranks(shape, rank, ratio) == expected


@settings(max_examples=20)
@given(
    out=st.integers(1, 8), into=st.integers(1, 8), kernel=st.integers(1, 3),
    first=st.integers(1, 8), second=st.integers(1, 8), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_projection_is_the_multilinear_product(out, into, kernel, first, second, seed) -> None:
    first, second = min(first, out), min(second, into)
    grad = draw(out, into, kernel, kernel, seed=seed)
    factors = {0: orthonormal(out, first, seed + 1), 1: orthonormal(into, second, seed + 2)}
    core = tucker.project(grad, factors)
    expected = torch.einsum("oikl,oa,ib->abkl", grad, factors[0], factors[1])
    torch.testing.assert_close(core, expected)
    rebuilt = torch.einsum("abkl,oa,ib->oikl", core, factors[0], factors[1])
    torch.testing.assert_close(tucker.back(core, factors), rebuilt)


@settings(max_examples=15)
@given(out=st.integers(2, 9), into=st.integers(2, 9), seed=st.integers(0, 2**31))
def test_decomposition_recovers_a_tensor_of_low_rank(out, into, seed) -> None:
    ranks = {0: (out + 1) // 2, 1: (into + 1) // 2}
    planted = {mode: orthonormal(n, ranks[mode], seed + mode) for mode, n in ((0, out), (1, into))}
    grad = tucker.back(draw(ranks[0], ranks[1], 3, 3, seed=seed + 2), planted)
    factors = tucker.decompose(grad, ranks)
    for basis in factors.values():
        torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1], dtype=grad.dtype))
    torch.testing.assert_close(tucker.back(tucker.project(grad, factors), factors), grad)


def test_sweeps_improve_on_the_start() -> None:
    # HOSVD is within sqrt(2) of the best error for two modes; sweeps may only lower it
    grad, sizes = draw(20, 16, 3, 3, seed=4), {0: 5, 1: 4}

    def error(factors: tucker.Factors) -> float:
        return float((tucker.back(tucker.project(grad, factors), factors) - grad).norm())

    start = {
        mode: torch.linalg.svd(grad.movedim(mode, 0).flatten(1), full_matrices=False)[0][:, :size]
        for mode, size in sizes.items()
    }
    assert error(tucker.decompose(grad, sizes)) < error(start)


@settings(max_examples=25)
@given(
    out=st.integers(2, 6), into=st.integers(2, 6), kernel=st.integers(1, 3),
    modes=st.sampled_from([(0,), (0, 1)]), seed=st.integers(0, 2**31),
)  # fmt: skip
def test_analytic_gradients_equal_autograd(out, into, kernel, modes, seed) -> None:
    grad = draw(out, into, kernel, kernel, seed=seed)
    sizes = {mode: max(1, n - 1) for mode, n in ((0, out), (1, into)) if mode in modes}
    factors = {
        mode: nn.Parameter(draw(grad.shape[mode], size, seed=seed + mode) / 2)
        for mode, size in sizes.items()
    }
    exp_avg = draw(*(sizes.get(mode, n) for mode, n in enumerate(grad.shape)), seed=seed + 5)
    rebuilt = tucker.back(tucker.project(grad, factors), factors)
    mse = nn.functional.mse_loss(rebuilt, grad)
    estimate = tucker.back(exp_avg, factors)
    cosine = nn.functional.cosine_similarity(estimate, grad, dim=1).mean()
    (mse * (1 - cosine)).backward()
    plain = {mode: factor.detach() for mode, factor in factors.items()}
    ours = tucker.objective_gradients(grad, plain, exp_avg)
    for mode, factor in factors.items():
        size = max(1.0, float(factor.grad.abs().max()))
        torch.testing.assert_close(ours[mode], factor.grad, rtol=1e-10, atol=1e-10 * size)


def test_a_convolution_keeps_the_core_and_two_factors() -> None:
    weight = nn.Parameter(torch.zeros(64, 32, 3, 3))
    optimizer = COAP([weight], rank_ratio=4.0)
    weight.grad = draw(64, 32, 3, 3).float()
    optimizer.step()
    numbers = sum(t.numel() for t in optimizer.state[weight].values() if isinstance(t, Tensor))
    assert numbers == 2 * 32 * 16 * 9 + 64 * 32 + 32 * 16


def test_convolution_takes_the_same_step_as_by_hand() -> None:
    weight = nn.Parameter(torch.zeros(40, 30, 3, 3, dtype=torch.float64))
    optimizer = COAP([weight], rank_ratio=4.0, lr=0.1, scale=0.5, update_interval=1000)
    exp_avg = exp_avg_sq = 0.0
    expected = torch.zeros_like(weight)
    for t in range(1, 5):
        weight.grad = draw(40, 30, 3, 3, seed=t)
        optimizer.step()
        state = optimizer.state[weight]
        out, into = state["projection_0"], state["projection_1"]
        core = torch.einsum("oikl,oa,ib->abkl", weight.grad, out, into)
        exp_avg = 0.9 * exp_avg + 0.1 * core
        exp_avg_sq = 0.999 * exp_avg_sq + 0.001 * core * core
        correction = math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        update = exp_avg / (exp_avg_sq.sqrt() + 1e-6)
        expected -= 0.05 * correction * torch.einsum("abkl,oa,ib->oikl", update, out, into)
    torch.testing.assert_close(weight.detach(), expected)


def test_small_convolutions_get_plain_adam() -> None:
    small = nn.Parameter(torch.zeros(32, 32, 3, 3))
    large = nn.Parameter(torch.zeros(33, 32, 3, 3))
    optimizer = COAP([small, large], rank_ratio=4.0)
    assert [param is large for _, param in optimizer.treated_parameters()] == [True]


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "8bit"])
@pytest.mark.parametrize("rotate", [False, True])
@pytest.mark.parametrize("variant", ["official", "normalised", "off"])
def test_convolutions_in_every_storage(variant, rotate, storage) -> None:
    # where the official code fails with 8 bits at the first step of Eq. 5
    weight = nn.Parameter(torch.zeros(32, 32, 4, 4))
    target = draw(32, 32, 4, 4, seed=9).float()
    optimizer = COAP(
        [weight], lr=0.05, rank_ratio=2.0, update_interval=3, recalibrate_every=2,
        correlation_update=variant, rotate_moments=rotate, storage=storage,
    )  # fmt: skip
    for _ in range(20):
        optimizer.zero_grad()
        loss = (weight - target).square().mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.8 * float(target.square().mean())
    # the last refresh, at step 19, was a recalibration
    for mode in (0, 1):
        basis = optimizer.state[weight][f"projection_{mode}"].double()
        error = basis.T @ basis - torch.eye(basis.shape[1], dtype=torch.float64)
        assert float(error.norm()) < (5e-2 if storage == "bfloat16" else 1e-5)


@pytest.mark.parametrize("kernel", [(3, 3), (3, 1)])
def test_factors_take_one_step_by_their_own_gradients(kernel) -> None:
    # the official code never clears them: its second step would add the first gradient
    weight = nn.Parameter(torch.zeros(64, 50, *kernel, dtype=torch.float64))
    optimizer = COAP([weight], rank_ratio=9.0, update_interval=1, recalibrate_every=10)
    modes = (0, 1) if kernel[1] > 1 else (0,)
    for seed in range(4):
        state = optimizer.state[weight]
        if seed:
            old = {mode: nn.Parameter(state[f"projection_{mode}"].clone()) for mode in modes}
            exp_avg = state["exp_avg"].clone()
        weight.grad = 3 * draw(64, 50, *kernel, seed=seed)
        optimizer.step()
        if seed:
            rebuilt = tucker.back(tucker.project(weight.grad, old), old)
            estimate = tucker.back(exp_avg, old)
            cosine = nn.functional.cosine_similarity(estimate, weight.grad, dim=1).mean()
            (nn.functional.mse_loss(rebuilt, weight.grad) * (1 - cosine)).backward()
            for mode in modes:
                nn.utils.clip_grad_norm_([old[mode]], 1.0)
                expected = (old[mode] - 0.1 * old[mode].grad).detach()
                torch.testing.assert_close(state[f"projection_{mode}"], expected)


# ---- rules and rotation --------------------------------------------------------------------


@pytest.mark.parametrize("factory", [COAP, GaLore])
@pytest.mark.parametrize("rule", ["adam", "adafactor", "adam_mini", "muon"])
def test_every_rule_lowers_a_loss(factory, rule) -> None:
    target = draw(24, 32, seed=5).float()
    weight = nn.Parameter(torch.zeros(24, 32))
    optimizer = factory([weight], lr=0.05, rank=12, update_interval=5, scale=1.0, rule=rule)
    for _ in range(80):
        optimizer.zero_grad()
        loss = (weight - target).square().mean()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.6 * float(target.square().mean())


def test_adafactor_on_the_projected_gradient_step_by_step() -> None:
    weight, lr = nn.Parameter(torch.zeros(9, 6, dtype=torch.float64)), 0.1
    optimizer = COAP([weight], lr=lr, rank=3, rule="adafactor", scale=0.5)
    row = column = moment = 0.0
    expected = torch.zeros_like(weight)
    for t in range(1, 6):
        weight.grad = draw(9, 6, seed=t)
        optimizer.step()
        basis = optimizer.state[weight]["projection"]
        low = weight.grad @ basis
        decay = 1 - t**-0.8
        square = low * low + 1e-30
        row = decay * row + (1 - decay) * square.mean(1)
        column = decay * column + (1 - decay) * square.mean(0)
        update = low / torch.sqrt(torch.outer(row, column) / row.mean())
        update = update / max(1.0, float(update.square().mean().sqrt()))
        moment = 0.9 * moment + 0.1 * lr * update
        expected -= 0.5 * moment @ basis.T
    torch.testing.assert_close(weight.detach(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rule", ["adafactor", "adam_mini", "muon"])
def test_rotation_needs_both_moments(rule) -> None:
    with pytest.raises(UnsupportedCombination, match="rotate_moments.*rule='adam'"):
        COAP([nn.Parameter(torch.zeros(9, 6))], rank=3, rotate_moments=True, rule=rule)


def test_rotation_into_an_unchanged_span_keeps_the_momentum() -> None:
    # a gradient of rank 3 has one subspace; its basis turns, the momentum in the weight does not
    left, right = draw(9, 3, seed=1), draw(3, 6, seed=2)
    weight = nn.Parameter(torch.zeros(9, 6, dtype=torch.float64))
    optimizer = COAP([weight], rank=3, update_interval=1, recalibrate_every=1, rotate_moments=True)
    expected = torch.zeros(9, 6, dtype=torch.float64)
    for step in range(6):
        weight.grad = left @ torch.diag(draw(3, seed=step)) @ right
        optimizer.step()
        expected = 0.9 * expected + 0.1 * weight.grad
        state = optimizer.state[weight]
        torch.testing.assert_close(state["exp_avg"] @ state["projection"].T, expected)


# ---- real gradients ------------------------------------------------------------------------


def test_normalised_step_lowers_the_objective_on_real_gradients() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    text = (nn.functional.cross_entropy.__doc__ + nn.functional.embedding.__doc__).encode()
    tokens = torch.tensor(list(text[: 16 * 128])).view(16, 128)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=256, hidden_size=48, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4,
        )
    )  # fmt: skip
    matrices = [p for n, p in model.named_parameters() if "proj" in n]
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    bases: dict[Tensor, Tensor] = {}
    moments: dict[Tensor, Tensor] = {}
    fell = []
    for step in range(8):
        model.zero_grad()
        rows = tokens[4 * (step % 4) :][:4]
        model(input_ids=rows, labels=rows).loss.backward()
        for seed, param in enumerate(matrices):
            left = param.shape[0] < param.shape[1]
            grad = (param.grad.T if left else param.grad).double()
            if step == 0:
                bases[param] = correlation.sketch_basis(grad, draw(grad.shape[1], 8, seed=seed))
                moments[param] = torch.zeros(len(grad), 8, dtype=torch.float64)
            elif step > 2:
                unit = correlation.unit_rms(grad), correlation.unit_rms(moments[param])
                new = correlation.correlation_step(
                    grad, bases[param], moments[param], transposed=left, variant="normalised"
                )
                before, after = (
                    float(correlation.objective(unit[0], basis, unit[1], transposed=left))
                    for basis in (bases[param], new)
                )
                fell.append(after / before)
            moments[param].lerp_(grad @ bases[param], 0.1)
        adam.step()
    assert len(fell) == 14 * 5
    assert max(fell) < 1
