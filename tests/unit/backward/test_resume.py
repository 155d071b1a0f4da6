"""Resume equals no resume, bit for bit, through a file that loads with weights_only."""

import pytest
import torch

import memopt

from . import toys

CASES = {
    "adama": ("adama", {}),
    "adama, N": ("adama", {"v_scale": "N", "micro_batches": 2}),
    "adama, decay": ("adama", {"weight_decay": 0.1, "maximize": True}),
    "lomo": ("lomo", {"micro_batches": 2, "weight_decay": 0.1}),
    "adalomo": ("adalomo", {"micro_batches": 2, "weight_decay": 0.1}),
    "adalomo, ungrouped": ("adalomo", {"micro_batches": 2, "grouped_normalization": False}),
}


PRECISIONS = [
    (torch.float32, "nearest"),
    (torch.bfloat16, "nearest"),
    (torch.bfloat16, "stochastic"),
]


@pytest.mark.parametrize("dtype, rounding", PRECISIONS)
@pytest.mark.parametrize("name, arguments", CASES.values(), ids=CASES)
def test_methods_in_backward(name, arguments, dtype, rounding, tmp_path) -> None:
    arguments = {**arguments, "rounding": rounding}
    data = toys.batches(12)
    model = toys.net(dtype=dtype)
    optimizer = toys.build(name, model, **arguments)
    toys.train(model, optimizer, data, 2)

    half = toys.net(dtype=dtype)
    before = toys.build(name, half, **arguments)
    toys.train(half, before, data[:5], 2)
    torch.save([half.state_dict(), before.state_dict()], tmp_path / "checkpoint.pt")

    weights, state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed = toys.net(seed=1, dtype=dtype)
    resumed.load_state_dict(weights)
    after = toys.build(name, resumed, **arguments)
    after.load_state_dict(state)
    for group in after.state.values():
        for value in group.values():
            assert not isinstance(value, torch.Tensor) or value.dtype is torch.float32
    toys.train(resumed, after, data[5:], 2)
    assert toys.same(model, resumed)


LENT = [(memopt.update_in_backward, name, {}) for name in ("adamw", "gwt", "coap", "galore")]
LENT += [(memopt.accumulate_in_backward, name, {}) for name in ("adamw", "gwt", "coap", "galore")]
LENT += [
    (memopt.accumulate_in_backward, "coap", {"rotate_moments": True}),
    (memopt.accumulate_in_backward, "galore", {"rule": "adafactor"}),
]


@pytest.mark.parametrize("stop", [3, 5, 6])
@pytest.mark.parametrize("lend, name, arguments", LENT)
def test_methods_lent_a_timing(lend, name, arguments, stop, tmp_path) -> None:
    """On and off a refresh of the projection (every third step)."""
    data = toys.batches(9)

    def fresh(seed: int):
        model = toys.net(seed)
        optimizer = toys.build(name, model, **arguments)
        lend(optimizer, 2)
        return model, optimizer

    model, optimizer = fresh(0)
    toys.train(model, optimizer, data, 2)
    half, before = fresh(0)
    toys.train(half, before, data[:stop], 2)
    torch.save([half.state_dict(), before.state_dict()], tmp_path / "checkpoint.pt")
    weights, state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    resumed, after = fresh(1)
    resumed.load_state_dict(weights)
    after.load_state_dict(state)
    toys.train(resumed, after, data[stop:], 2)
    assert toys.same(model, resumed)
