"""The laws of state that every method keeps, whatever its algorithm."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

import memopt
from memopt import NonFiniteGradientError
from memopt.states import blockwise, nbytes
from memopt.subspaces import tucker
from tests.properties.variants import (
    METHODS,
    SHAPES,
    STORAGES,
    VARIANTS,
    build,
    parameters,
    pull,
    tensors,
)

every_method = pytest.mark.parametrize("variant", METHODS.values(), ids=METHODS)
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture(autouse=True, scope="module")
def small_kernels() -> Iterator[None]:
    """COAP projects even the small kernels of these tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tucker, "PLAIN_ELEMENTS", 1)
        yield


def train(optimizer, params: dict[str, nn.Parameter], steps: range) -> None:
    for step in steps:
        pull(params, step)
        optimizer.step()


def values(params: dict[str, nn.Parameter]) -> list[torch.Tensor]:
    return [param.detach().clone() for param in params.values()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


# ---- gradients of every kind ---------------------------------------------------------------

shapes = st.lists(st.integers(1, 7), min_size=0, max_size=4).map(tuple)
dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16])
kinds = st.sampled_from(["normal", "zero", "rank one", "tiny", "huge", "alternating"])


def gradient(kind: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    normal = torch.randn(shape, generator=draw)
    if kind == "zero":
        return torch.zeros(shape)
    if kind == "rank one" and len(shape) > 1:
        ones = torch.ones(shape)
        return ones * torch.randn(shape[0], *[1] * (len(shape) - 1), generator=draw)
    if kind == "alternating" and shape:
        return torch.cos(math.pi * torch.arange(math.prod(shape))).view(shape)
    return normal * {"tiny": 1e-7, "huge": 1e4}.get(kind, 1.0)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@settings(max_examples=15)
@given(
    shape=shapes, dtype=dtypes, kind=kinds, storage=st.sampled_from(STORAGES),
    seed=st.integers(0, 2**31),
)  # fmt: skip
@example(shape=(4, 4), dtype=torch.float32, kind="zero", storage="float32", seed=0)
@example(shape=(5, 4), dtype=torch.bfloat16, kind="rank one", storage="8bit", seed=0)
def test_any_parameter_takes_any_gradient(variant, shape, dtype, kind, storage, seed) -> None:
    storage = "float32" if dtype is torch.float64 else storage
    param = nn.Parameter(torch.ones(shape, dtype=dtype))
    carrier = nn.Parameter(torch.zeros(8, 8, dtype=dtype))  # so that there is something to treat
    optimizer = build(variant, [param, carrier], lr=1e-3, storage=storage)
    for step in range(3):
        param.grad = gradient(kind, shape, seed + step).to(dtype)
        kept = param.grad.clone()
        optimizer.step()
        assert torch.equal(param.grad, kept)  # B34: the gradient keeps its shape and values
    assert param.shape == shape and param.dtype is dtype
    if dtype is not torch.float16:  # alternating details over eps leave its range: 1e3 steps
        assert param.isfinite().all()
    if kind == "zero":
        assert torch.equal(param.detach(), torch.ones(shape, dtype=dtype))
    state = optimizer.state[param]
    group = optimizer.param_groups[0]
    declared = {
        key: nbytes(key, buffer, storage, dtype)
        for key, buffer in optimizer.declared(param, group).items()
    }
    assert sum(t.numel() * t.element_size() for _, t in tensors(state)) == sum(declared.values())


@every_variant
def test_strided_gradients_and_weights(variant) -> None:
    # one layout of the same numbers gives the same update, up to the order of sums
    flat = {
        "tall": nn.Parameter(torch.randn(12, 7)),
        "kernel": nn.Parameter(torch.randn(8, 3, 2, 2)),
    }
    strided = {
        "tall": nn.Parameter(flat["tall"].detach().T.contiguous().T),
        "kernel": nn.Parameter(flat["kernel"].detach().to(memory_format=torch.channels_last)),
    }
    assert not strided["tall"].is_contiguous() and not strided["kernel"].is_contiguous()
    optimizers = [build(variant, each.items(), lr=1e-2) for each in (flat, strided)]
    for step in range(4):
        pull(flat, step)
        for name, param in strided.items():
            param.grad = flat[name].grad.clone().as_strided(param.shape, flat[name].grad.stride())
            other = torch.empty_strided(param.shape, param.stride())
            param.grad = other.copy_(flat[name].grad)
        for optimizer in optimizers:
            optimizer.step()
    for name in flat:
        torch.testing.assert_close(strided[name], flat[name], rtol=1e-4, atol=1e-5)


@every_variant
def test_empty_parameters_are_left_alone(variant) -> None:
    # a shard can be empty
    params = {
        "matrix": nn.Parameter(torch.randn(6, 8)),
        "no rows": nn.Parameter(torch.zeros(0, 8)),
        "nothing": nn.Parameter(torch.zeros(0)),
    }
    optimizer = build(variant, params.items())
    train(optimizer, params, range(2))
    assert [optimizer.name_of(param) for param in optimizer.state] == ["matrix"]


@every_variant
def test_two_runs_have_the_same_bits(variant) -> None:
    runs = []
    for _ in range(2):
        torch.rand(3)  # the global generator plays no part
        params = parameters()
        train(build(variant, params.items()), params, range(6))
        runs.append(values(params))
    assert same(*runs)


@every_variant
def test_maximize_follows_the_opposite_gradient(variant) -> None:
    up, down = parameters(), parameters()
    ascent = build(variant, up.items(), maximize=True)
    descent = build(variant, down.items())
    for step in range(5):
        pull(up, step)
        for name, param in down.items():
            param.grad = -up[name].grad
        ascent.step()
        descent.step()
    assert same(values(up), values(down))


# ---- the loop around the optimizer ---------------------------------------------------------


@every_method
def test_closure_runs_with_autograd_and_returns_the_loss(variant) -> None:
    plain, closed = parameters(), parameters()

    def loss_of(params):
        return sum((param.square().sum() for param in params.values()), torch.zeros(()))

    first, second = build(variant, plain.items()), build(variant, closed.items())
    for _ in range(3):
        first.zero_grad()
        expected = loss_of(plain)
        expected.backward()
        first.step()

        def closure():
            second.zero_grad()
            assert torch.is_grad_enabled()
            loss = loss_of(closed)
            loss.backward()
            return loss

        assert torch.equal(second.step(closure), expected)
    assert same(values(plain), values(closed))


@every_method
@pytest.mark.parametrize("name", ["step", "cosine", "one cycle"])
def test_schedulers_set_the_rate_that_is_applied(variant, name) -> None:
    scheduled, manual = parameters(), parameters()
    first, second = (build(variant, each.items(), lr=0.05) for each in (scheduled, manual))
    lr_scheduler = torch.optim.lr_scheduler
    schedule = {
        "step": lambda: lr_scheduler.StepLR(first, 1, 0.5),
        "cosine": lambda: lr_scheduler.CosineAnnealingLR(first, T_max=4, eta_min=1e-3),
        "one cycle": lambda: lr_scheduler.OneCycleLR(first, max_lr=0.05, total_steps=8),
    }[name]()
    rates = set()
    for step in range(4):
        for key in ("lr", "betas"):  # OneCycle moves beta1 too
            second.param_groups[0][key] = first.param_groups[0][key]
        rate = first.param_groups[0]["lr"]
        for optimizer, params in ((first, scheduled), (second, manual)):
            train(optimizer, params, range(step, step + 1))
        assert first.param_groups[0]["lr"] == rate  # step() never rewrites it
        rates.add(rate)
        schedule.step()
    assert len(rates) == 4
    assert same(values(scheduled), values(manual))


@every_method
def test_rate_zero_moves_nothing_but_the_moments(variant) -> None:
    params = parameters()
    before = values(params)
    optimizer = build(variant, params.items(), lr=0.0, weight_decay=0.1)
    train(optimizer, params, range(1))
    assert same(before, values(params))
    assert optimizer.state[params["tall"]]["exp_avg"].any()


@every_method
def test_added_group_starts_at_its_own_first_step(variant) -> None:
    params, late, alone = parameters(), parameters(seed=3), parameters(seed=3)
    optimizer = build(variant, params.items())
    train(optimizer, params, range(4))
    optimizer.add_param_group({"params": list(late.items()), "lr": 0.02})
    train(optimizer, {**params, **{f"late.{k}": v for k, v in late.items()}}, range(1))
    fresh = build(variant, alone.items(), lr=0.02)
    for name, param in alone.items():
        param.grad = late[name].grad
    fresh.step()
    assert same(values(late), values(alone))
    assert optimizer.state[late["tall"]]["step"] == 1
    assert optimizer.state[params["tall"]]["step"] == 5


@every_method
def test_frozen_parameters_thaw_and_unused_ones_wait(variant) -> None:
    params, twin = parameters(), parameters()
    params["tall"].requires_grad_(False)
    optimizer = build(variant, params.items())
    before = params["tall"].detach().clone()
    for step in range(3):
        pull(params, step)
        params["tall"].grad = params["vector"].grad = None
        optimizer.step()
    assert torch.equal(params["tall"].detach(), before)
    assert not optimizer.state[params["tall"]] and not optimizer.state[params["vector"]]
    params["tall"].requires_grad_(True)
    late, fresh = {"tall": params["tall"]}, build(variant, twin.items())
    for param in params.values():
        param.grad = None
    train(optimizer, late, range(7, 9))
    train(fresh, {"tall": twin["tall"]}, range(7, 9))
    assert torch.equal(params["tall"].detach(), twin["tall"].detach())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.layers[1].weight = self.layers[0].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers[1](self.layers[0](x))


@every_method
def test_tied_weights_have_one_state_and_one_update(variant) -> None:
    torch.manual_seed(1)
    model = Tied()
    method, arguments = variant
    optimizer = memopt.create(method, model, **arguments)
    assert [name for name, _ in optimizer.treated_parameters()] == ["layers.0.weight"]
    model(torch.randn(4, 8)).square().sum().backward()
    twin = nn.Parameter(model.layers[0].weight.detach().clone())
    twin.grad = model.layers[0].weight.grad.clone()
    optimizer.step()
    build(variant, [("layers.0.weight", twin)]).step()
    assert torch.equal(model.layers[1].weight.detach(), twin.detach())
    assert optimizer.state[model.layers[1].weight]["step"] == 1


@every_method
def test_gradients_accumulate_in_place_after_a_step(variant) -> None:
    model = Tied()
    method, arguments = variant
    optimizer = memopt.create(method, model, **arguments)
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        assert not model.layers[0].weight.grad.any()


# ---- non-finite gradients ------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("where", ["wide", "vector"])
def test_non_finite_gradient_is_named_before_anything_changes(variant, where, bad) -> None:
    params = parameters()
    optimizer = build(variant, params.items())
    train(optimizer, params, range(2))
    before = values(params)
    pull(params, 2)
    params[where].grad.view(-1)[3] = bad
    with pytest.raises(NonFiniteGradientError, match=f"'{where}'.*nonfinite='skip'"):
        optimizer.step()
    assert same(before, values(params))
    assert {state["step"] for state in optimizer.state.values()} == {2}


@every_method
def test_skipped_updates_are_counted_and_leave_no_trace(variant) -> None:
    disturbed, clean = parameters(), parameters()
    first = build(variant, disturbed.items(), nonfinite="skip")
    second = build(variant, clean.items())
    for step in range(6):
        if step in (0, 3):
            pull(disturbed, 50)
            disturbed["kernel"].grad[0, 0] = float("nan")
            first.step()
        train(first, disturbed, range(step, step + 1))
        train(second, clean, range(step, step + 1))
    assert same(values(disturbed), values(clean))
    assert first.param_groups[0]["skipped_steps"] == 2


@every_method
def test_ignoring_never_surfaces_a_decomposition(variant) -> None:
    params = parameters()
    optimizer = build(variant, params.items(), nonfinite="ignore")
    pull(params, 0)
    params["wide"].grad[0, 0] = float("nan")
    try:
        optimizer.step()
    except NonFiniteGradientError as error:
        assert "'wide'" in str(error)
    else:  # GWT needs no decomposition: the NaN goes where the gradient goes
        assert params["wide"].isnan().any()


# ---- groups --------------------------------------------------------------------------------


@every_method
def test_untreated_groups_get_adam_at_the_full_rate(variant) -> None:
    names = ("vector", "scalar", "tall")
    params, twin = parameters(torch.float64), parameters(torch.float64)
    plain = [(name, params[name]) for name in names]
    treated = [(name, params[name]) for name in params if name not in names]
    groups = [{"params": treated, "treated": True}, {"params": plain, "treated": False}]
    optimizer = build(variant, groups, lr=0.1, eps=0.0)
    adam = torch.optim.Adam(twin.values(), lr=0.1, eps=0.0)
    train(optimizer, params, range(4))
    train(adam, twin, range(4))
    for name in names:
        torch.testing.assert_close(params[name], twin[name], rtol=1e-10, atol=1e-12)


@every_method
def test_groups_serve_several_optimizers_and_hold_the_models_parameters(variant) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))
    groups = memopt.param_groups(model)
    keys = [set(group) for group in groups]
    for again in (variant, ("gwt", {"level": 1}), variant):
        optimizer = build(again, groups)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        assert held == {id(p) for p in model.parameters()}
    assert [set(group) for group in groups] == keys


@every_method
def test_group_values_override_and_unnamed_parameters_get_a_place(variant) -> None:
    matrices = [nn.Parameter(torch.ones(8, 8)) for _ in range(2)]
    groups = [
        {"params": matrices[:1], "lr": 0.0, "treated": True},
        {"params": matrices[1:], "lr": 0.1, "treated": True},
    ]
    optimizer = build(variant, groups)
    for matrix in matrices:
        matrix.grad = torch.randn(8, 8)
    optimizer.step()
    assert torch.equal(matrices[0].detach(), torch.ones(8, 8))
    assert not torch.equal(matrices[1].detach(), torch.ones(8, 8))
    assert optimizer.name_of(matrices[1]) == "group1.param0"


# ---- bytes ---------------------------------------------------------------------------------

FORMULAS = {  # numbers kept for a 96 x 64 matrix and a 64 x 96 matrix
    "gwt": (2 * 96 * 16 + 1, 2 * 64 * 24 + 1),
    "galore": (2 * 96 * 3 + 64 * 3, 2 * 96 * 3 + 64 * 3),
    "coap": (2 * 96 * 3 + 64 * 3, 2 * 96 * 3 + 64 * 3),
}


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("storage", STORAGES)
def test_state_is_the_formula(name, storage) -> None:
    for shape, numbers in zip([(96, 64), (64, 96)], FORMULAS[name], strict=True):
        weight = nn.Parameter(torch.zeros(shape))
        optimizer = build(METHODS[name], [weight], storage=storage)
        weight.grad = torch.randn(shape)
        optimizer.step()
        total = sum(t.numel() * t.element_size() for _, t in tensors(optimizer.state[weight]))
        if storage == "bfloat16":
            numbers += 1 if name == "gwt" else 0  # the limiter's norm keeps its four bytes
        # all moments here are below the 4096 elements from which codes are used
        assert total == numbers * (2 if storage == "bfloat16" else 4)


@pytest.mark.parametrize("name", METHODS)
def test_eight_bit_state_is_the_formula(name, monkeypatch) -> None:
    monkeypatch.setattr(blockwise, "MINIMUM_ELEMENTS", 1)
    weight = nn.Parameter(torch.zeros(96, 64, dtype=torch.bfloat16))
    optimizer = build(METHODS[name], [weight], storage="8bit")
    weight.grad = torch.randn(96, 64).bfloat16()
    optimizer.step()
    state = optimizer.state[weight]
    moment = 96 * 16 if name == "gwt" else 96 * 3
    expected = 2 * (moment + 4 * math.ceil(moment / 256))
    expected += 4 if name == "gwt" else 2 * 64 * 3  # the norm; the basis in the weight's dtype
    assert sum(t.numel() * t.element_size() for _, t in tensors(state)) == expected
    assert state["exp_avg"].dtype is torch.int8 and state["exp_avg_sq"].dtype is torch.uint8


def test_shapes_of_these_tests_are_awkward() -> None:
    assert any(shape and shape[-1] % 2 for shape in SHAPES.values())
    assert {len(shape) for shape in SHAPES.values()} == {0, 1, 2, 4}
