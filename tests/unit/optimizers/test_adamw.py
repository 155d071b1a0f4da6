"""AdamW is torch's own to the last bit, and keeps memopt's laws."""

import io
import warnings

import pytest
import torch
from torch import nn

import memopt
from memopt import NonFiniteGradientError, UnsupportedCombination

SHAPES = {"matrix": (8, 12), "kernel": (4, 3, 2, 2), "vector": (7,), "scalar": ()}
KERNELS = {"torch's choice": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def parameters(dtype: torch.dtype = torch.float32) -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(4)
    return {k: nn.Parameter(torch.randn(s, generator=draw).to(dtype)) for k, s in SHAPES.items()}


def train(optimizer: torch.optim.Optimizer, params: dict[str, nn.Parameter], steps: range) -> None:
    for step in steps:
        draw = torch.Generator().manual_seed(step)
        for param in params.values():
            param.grad = torch.randn(param.shape, generator=draw).to(param.dtype)
        optimizer.step()


def same(first: dict, second: dict) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("options", [{}, {"amsgrad": True}, {"maximize": True}], ids=str)
def test_bits_of_torch(options, kernel, dtype) -> None:
    arguments = {"lr": 0.02, "weight_decay": 0.1, **options, **kernel}
    ours, theirs = parameters(dtype), parameters(dtype)
    first = memopt.AdamW(ours.values(), **arguments)
    second = torch.optim.AdamW(theirs.values(), **arguments)
    train(first, ours, range(20))
    train(second, theirs, range(20))
    assert same(ours, theirs)
    for name in SHAPES:
        mine, other = first.state[ours[name]], second.state[theirs[name]]
        assert mine.keys() == other.keys()
        for key in mine:
            assert torch.equal(mine[key], other[key]) and mine[key].dtype is other[key].dtype


def test_groups_and_schedules_of_torch() -> None:
    runs = []
    for factory in (memopt.AdamW, torch.optim.AdamW):
        params = parameters()
        plain = [params["vector"], params["scalar"]]
        matrices = [params["matrix"], params["kernel"]]
        groups = [{"params": matrices}, {"params": plain, "weight_decay": 0.0, "lr": 0.1}]
        optimizer = factory(groups, lr=0.02)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=12)
        for step in range(10):
            train(optimizer, params, range(step, step + 1))
            schedule.step()
        runs.append(params)
    assert same(*runs)


# ---- the laws ------------------------------------------------------------------------------


def test_misspelt_and_impossible_arguments_are_named() -> None:
    weight = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="group key 'weight_deacy'.*Did you mean 'weight_decay'"):
        memopt.AdamW([{"params": [weight], "weight_deacy": 0.1}])
    with pytest.raises(ValueError, match="group key 'rounding'"):
        memopt.AdamW([{"params": [weight], "rounding": "stochastic"}])
    with pytest.raises(ValueError, match="nonfinite policy 'rise'. Did you mean 'raise'"):
        memopt.AdamW([weight], nonfinite="rise")
    with pytest.raises(ValueError, match="eps must be a finite number of zero or more"):
        memopt.AdamW([{"params": [weight], "eps": -1.0}])
    with pytest.raises(UnsupportedCombination, match="fused and foreach"):
        memopt.AdamW([weight], fused=True, foreach=True)
    with pytest.raises(UnsupportedCombination, match=r"use torch.optim.AdamW"):
        memopt.AdamW([{"params": [weight], "differentiable": True}])
    optimizer = memopt.AdamW([weight])
    with pytest.raises(ValueError, match="group key 'lrate'. Did you mean"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))], "lrate": 0.1})
    assert len(optimizer.param_groups) == 1


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_non_finite_gradients(kernel) -> None:
    params, clean = parameters(), parameters()
    optimizer = memopt.AdamW(params.items(), lr=0.1, **kernel)
    before = {name: param.detach().clone() for name, param in params.items()}
    for name, param in params.items():
        param.grad = torch.full_like(param, float("nan") if name == "kernel" else 1.0)
    with pytest.raises(NonFiniteGradientError, match="'kernel'"):
        optimizer.step()
    assert same(before, params) and not optimizer.state
    optimizer.param_groups[0]["nonfinite"] = "skip"
    optimizer.step()
    assert optimizer.param_groups[0]["skipped_steps"] == 1
    train(optimizer, params, range(3))
    train(torch.optim.AdamW(clean.values(), lr=0.1, **kernel), clean, range(3))
    assert same(params, clean)


def test_sparse_gradient_is_named() -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = memopt.create("adamw", embedding)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(UnsupportedCombination, match="'weight' has a sparse gradient"):
        optimizer.step()


def test_overflow_under_a_grad_scaler_is_left_to_the_fused_kernel() -> None:
    params = parameters()
    optimizer = memopt.AdamW(params.values(), lr=0.1, fused=True)
    before = {name: param.detach().clone() for name, param in params.items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for value, moved in ((float("inf"), False), (1.0, True)):
        for param in params.values():
            param.grad = torch.full_like(param, value)
        scaler.scale(torch.ones(()))
        scaler.step(optimizer)
        scaler.update()
        assert same(before, params) is not moved


# ---- checkpoints ---------------------------------------------------------------------------


def through_a_file(content: dict) -> dict:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("source", [memopt.AdamW, torch.optim.AdamW])
@pytest.mark.parametrize("target", [memopt.AdamW, torch.optim.AdamW])
@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
def test_checkpoints_pass_between_torch_and_memopt(source, target, kernel) -> None:
    arguments = {"lr": 0.05, "weight_decay": 0.1, **kernel}
    whole, half = parameters(), parameters()
    train(memopt.AdamW(whole.values(), **arguments), whole, range(8))
    before = source(half.values(), **arguments)
    train(before, half, range(3))
    after = target(half.values(), **arguments)
    after.load_state_dict(through_a_file(before.state_dict()))
    train(after, half, range(3, 8))
    assert same(whole, half)


def test_state_of_other_methods_is_refused() -> None:
    others = {
        "AdamA": memopt.AdamA([nn.Parameter(torch.ones(4, 4))]),
        "GaLore": memopt.GaLore([nn.Parameter(torch.ones(4, 4))], rank=2),
        "SGD": torch.optim.SGD([nn.Parameter(torch.ones(4, 4))], lr=0.1),
    }
    optimizer = memopt.AdamW([nn.Parameter(torch.ones(4, 4))])
    for other in others.values():
        with pytest.raises(
            ValueError, match="not of AdamW: (it was saved by|its groups have no amsgrad)"
        ):
            optimizer.load_state_dict(other.state_dict())
        assert not optimizer.state


def test_a_state_of_other_shapes_or_options_is_refused() -> None:
    states = []
    for shape, arguments in (((4, 4), {}), ((4, 6), {}), ((4, 4), {"amsgrad": True})):
        weight = nn.Parameter(torch.ones(shape))
        optimizer = memopt.AdamW([("weight", weight)], **arguments)
        weight.grad = torch.ones(shape)
        optimizer.step()
        states.append(optimizer.state_dict())
    target = memopt.AdamW([("weight", nn.Parameter(torch.ones(4, 4)))])
    with pytest.raises(ValueError, match=r"'weight' it has exp_avg \(4, 6\).* exp_avg \(4, 4\)"):
        target.load_state_dict(states[1])
    assert not target.state
    broken = states[2] | {"param_groups": states[0]["param_groups"]}
    with pytest.raises(ValueError, match="max_exp_avg_sq"):
        target.load_state_dict(broken)
    target.load_state_dict(states[2])  # its own groups say that it has three moments
    assert target.param_groups[0]["amsgrad"] is True


def test_step_counts_stay_where_torch_has_them() -> None:
    params = parameters()
    optimizer = memopt.AdamW(params.values())
    train(optimizer, params, range(2))
    optimizer.load_state_dict(optimizer.state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(optimizer, params, range(2, 3))
    for state in optimizer.state.values():
        assert state["step"].device.type == "cpu" and state["step"].item() == 3
