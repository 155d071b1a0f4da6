"""Resume equals no resume, bit for bit, for every method, rule and storage."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from memopt.states import blockwise
from tests.properties.variants import METHODS, STORAGES, VARIANTS, build, parameters, pull, tensors

pytestmark = pytest.mark.usefixtures("small_kernels")
STEPS, STOP = 12, 5


@pytest.fixture
def tiny_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps even the small moments of these tests in 8 bits."""
    monkeypatch.setattr(blockwise, "MINIMUM_ELEMENTS", 1)


def through_a_file(content: dict) -> dict:
    file = io.BytesIO()
    torch.save(content, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def train(optimizer, params: dict[str, nn.Parameter], steps: range) -> None:
    for step in steps:
        pull(params, step)
        optimizer.step()


@pytest.mark.usefixtures("tiny_codes")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_resume_is_bit_exact(variant, storage, dtype) -> None:
    rounding = "stochastic" if dtype is torch.bfloat16 else "nearest"
    options = {"storage": storage, "rounding": rounding, "lr": 0.03, "weight_decay": 0.1}

    undisturbed = parameters(dtype)
    train(build(variant, undisturbed.items(), **options), undisturbed, range(STEPS))

    first = parameters(dtype)
    optimizer = build(variant, first.items(), **options)
    train(optimizer, first, range(STOP))
    saved = through_a_file({"model": first, "optimizer": optimizer.state_dict()})

    second = parameters(dtype, seed=99)
    with torch.no_grad():
        for name, param in second.items():
            param.copy_(saved["model"][name])
    resumed = build(variant, second.items(), **options)
    resumed.load_state_dict(saved["optimizer"])
    for name in first:
        before, after = optimizer.state[first[name]], resumed.state[second[name]]
        assert before.keys() == after.keys()
        assert type(after["step"]) is int and after["step"] == STOP
        for key, tensor in tensors(before):
            assert after[key].dtype == tensor.dtype  # torch alone casts to the weight's
            assert torch.equal(after[key], tensor) and after[key] is not tensor
    train(resumed, second, range(STOP, STEPS))

    for name in undisturbed:
        assert torch.equal(undisturbed[name], second[name]), name
        assert undisturbed[name].isfinite().all()


@pytest.mark.usefixtures("tiny_codes")
@pytest.mark.parametrize("variant", METHODS.values(), ids=METHODS)
def test_state_holds_tensors_and_plain_numbers(variant) -> None:
    params = parameters(torch.bfloat16)
    optimizer = build(variant, params.items(), storage="8bit")
    train(optimizer, params, range(1))
    kinds = {type(value) for state in optimizer.state.values() for value in state.values()}
    assert kinds == {int, torch.Tensor}
    assert not any(t.requires_grad for s in optimizer.state.values() for _, t in tensors(s))


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
@pytest.mark.parametrize("variant", METHODS.values(), ids=METHODS)
def test_copies_go_on_alike_and_know_their_names(variant, copier) -> None:
    params = parameters()
    optimizer = build(variant, params.items())
    train(optimizer, params, range(3))
    twin_optimizer, twin = copier((optimizer, params))
    for each, weights in ((optimizer, params), (twin_optimizer, twin)):
        train(each, weights, range(3, 7))
    assert all(torch.equal(params[name], twin[name]) for name in params)
    assert [twin_optimizer.name_of(param) for param in twin.values()] == list(params)


@pytest.mark.parametrize("variant", METHODS.values(), ids=METHODS)
def test_a_loaded_state_is_its_own(variant) -> None:
    params = parameters()
    optimizer = build(variant, params.items())
    train(optimizer, params, range(2))
    saved = optimizer.state_dict()
    kept = copy.deepcopy(saved)
    other = parameters()
    resumed = build(variant, other.items())
    resumed.load_state_dict(saved)
    train(resumed, other, range(2))
    for index, state in saved["state"].items():
        for key, tensor in tensors(state):
            assert torch.equal(tensor, kept["state"][index][key])


@pytest.mark.parametrize("variant", METHODS.values(), ids=METHODS)
def test_scheduler_keys_and_counters_survive(variant) -> None:
    params = parameters()
    optimizer = build(variant, params.items(), nonfinite="skip", lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=20)
    pull(params, 0)
    params["tall"].grad[0, 0] = float("nan")
    optimizer.step()
    schedule.step()
    resumed = build(variant, parameters().items(), nonfinite="skip", lr=0.1)
    resumed.load_state_dict(through_a_file(optimizer.state_dict()))
    (group,), (wanted,) = resumed.param_groups, optimizer.param_groups
    assert group["skipped_steps"] == 1
    assert {k: v for k, v in group.items() if k != "params"} == {
        k: v for k, v in wanted.items() if k != "params"
    }
