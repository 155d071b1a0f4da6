"""Parameters and gradients of every kind and layout, and the bytes of the state they make."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from memopt import catalog
from memopt.states import blockwise, nbytes
from tests.properties.variants import EVERY, PLAIN, SHAPES, STORAGES, build, ordinary, pull, tensors

every_variant = pytest.mark.parametrize("variant", EVERY.values(), ids=EVERY)


pytestmark = pytest.mark.usefixtures("small_kernels")

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


@pytest.mark.parametrize("variant", EVERY.values(), ids=EVERY)
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
    keeps = {"storage": storage} if "storage" in catalog.get(variant[0]).arguments() else {}
    # in backward there would be no gradient left to look at
    optimizer = ordinary(build(variant, [param, carrier], lr=1e-3, weight_decay=0.0, **keeps))
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
        key: nbytes(key, buffer, keeps.get("storage", "float32"), dtype)
        for key, buffer in optimizer.declared(param, group).items()
    }
    assert sum(t.numel() * t.element_size() for _, t in tensors(state)) == sum(declared.values())


@every_variant
def test_empty_parameters_are_left_alone(variant) -> None:
    # a shard can be empty
    params = {
        "matrix": nn.Parameter(torch.randn(6, 8)),
        "no rows": nn.Parameter(torch.zeros(0, 8)),
        "nothing": nn.Parameter(torch.zeros(0)),
    }
    optimizer = ordinary(build(variant, params.items()))
    for step in range(2):
        pull(params, step)
        optimizer.step()
    assert [optimizer.name_of(param) for param in optimizer.state] == ["matrix"]


# ---- bytes ---------------------------------------------------------------------------------

FORMULAS = {  # numbers kept for a 96 x 64 matrix and a 64 x 96 matrix
    "gwt": (2 * 96 * 16 + 1, 2 * 64 * 24 + 1),
    "galore": (2 * 96 * 3 + 64 * 3, 2 * 96 * 3 + 64 * 3),
    "coap": (2 * 96 * 3 + 64 * 3, 2 * 96 * 3 + 64 * 3),
    "muon": (96 * 64, 96 * 64),
    "foam": (2 * 96 * 16, 2 * 64 * 24),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("storage", STORAGES)
def test_state_is_the_formula(name, storage, monkeypatch) -> None:
    monkeypatch.setattr(blockwise, "MINIMUM_ELEMENTS", 96 * 64 + 1)  # too few here for codes
    for shape, numbers in zip([(96, 64), (64, 96)], FORMULAS[name], strict=True):
        weight = nn.Parameter(torch.zeros(shape))
        optimizer = build(PLAIN[name], [weight], storage=storage)
        weight.grad = torch.randn(shape)
        optimizer.step()
        total = sum(t.numel() * t.element_size() for _, t in tensors(optimizer.state[weight]))
        if storage == "bfloat16":
            numbers += 1 if name == "gwt" else 0  # the limiter's norm keeps its four bytes
        assert total == numbers * (2 if storage == "bfloat16" else 4)


@pytest.mark.parametrize("name", FORMULAS)
def test_eight_bit_state_is_the_formula(name, monkeypatch) -> None:
    monkeypatch.setattr(blockwise, "MINIMUM_ELEMENTS", 1)
    weight = nn.Parameter(torch.zeros(96, 64, dtype=torch.bfloat16))
    optimizer = build(PLAIN[name], [weight], storage="8bit")
    weight.grad = torch.randn(96, 64).bfloat16()
    optimizer.step()
    state = optimizer.state[weight]
    basis = 2 * 64 * 3  # in the weight's dtype
    # moments, their numbers, and bytes beside them: GWT's is the limiter's norm
    moments, numbers, beside = {
        "gwt": (2, 96 * 16, 4),
        "galore": (2, 96 * 3, basis),
        "coap": (2, 96 * 3, basis),
        "muon": (1, 96 * 64, 0),
        "foam": (2, 96 * 16, 0),
    }[name]
    expected = moments * (numbers + 4 * math.ceil(numbers / 256)) + beside
    assert sum(t.numel() * t.element_size() for _, t in tensors(state)) == expected
    assert state["exp_avg"].dtype is torch.int8
    assert name == "muon" or state["exp_avg_sq"].dtype is torch.uint8


def test_shapes_of_these_tests_are_awkward() -> None:
    assert any(shape and shape[-1] % 2 for shape in SHAPES.values())
    assert {len(shape) for shape in SHAPES.values()} == {0, 1, 2, 4}
