"""The laws of state that every method keeps, whatever its algorithm."""

import pytest
import torch
from torch import nn

import memopt
from memopt import NonFiniteGradientError
from tests.properties.variants import (
    METHODS,
    VARIANTS,
    build,
    parameters,
    pull,
)

pytestmark = pytest.mark.usefixtures("small_kernels")
every_method = pytest.mark.parametrize("variant", METHODS.values(), ids=METHODS)
every_variant = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)


def train(optimizer, params: dict[str, nn.Parameter], steps: range) -> None:
    for step in steps:
        pull(params, step)
        optimizer.step()


def values(params: dict[str, nn.Parameter]) -> list[torch.Tensor]:
    return [param.detach().clone() for param in params.values()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


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
@pytest.mark.parametrize("dtype, size", [(torch.float16, 3e4), (torch.float32, 1e25)])
def test_large_finite_gradients_are_not_refused(variant, dtype, size) -> None:
    # their norm overflows, they do not
    weight = nn.Parameter(torch.zeros(64, 64, dtype=dtype))
    optimizer = build(variant, [weight])
    weight.grad = torch.full_like(weight, size)
    weight.grad[0] = 0
    optimizer.step()
    assert optimizer.state[weight]["step"] == 1


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
