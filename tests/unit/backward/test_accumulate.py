"""AdamA's timing lent to GWT: the transform is linear, so m is that of the summed gradient."""

import pytest
import torch

import memopt

from . import toys


def timed(model, **arguments):
    optimizer = toys.build("gwt", model, **arguments)
    memopt.accumulate_in_backward(optimizer)
    return optimizer


@pytest.mark.parametrize("arguments", [{}, {"wavelet": "db2"}, {"axis": "first"}])
def test_one_micro_batch_is_gwt_bit_for_bit(arguments) -> None:
    plain, model = toys.net(), toys.net()
    toys.train(plain, toys.build("gwt", plain, **arguments), toys.batches(6))
    optimizer = timed(model, **arguments)
    toys.train(model, optimizer, toys.batches(6))
    assert toys.same(plain, model)
    assert toys.steps_of(optimizer) == {6}


def test_moments_over_micro_batches() -> None:
    """m is GWT's over the whole batch; v sums the squares of the micro-gradients' bands."""
    plain, model = (toys.net(dtype=torch.float64) for _ in range(2))
    tokens = toys.batches(1)[0]
    ordinary, optimizer = toys.build("gwt", plain), timed(model)
    toys.train(plain, ordinary, [tokens], 4)
    name = "blocks.0.weight"
    ours = optimizer.state[model.get_parameter(name)]
    theirs = ordinary.state[plain.get_parameter(name)]
    squares = torch.zeros(8, 4, dtype=torch.float64)
    for part in tokens.chunk(4):
        twin = toys.net(dtype=torch.float64)
        (toys.loss_of(twin, part) / 4).backward()
        pairs = twin.get_parameter(name).grad.unflatten(1, (4, 2))
        squares += (pairs.sum(2) / 2**0.5) ** 2  # Haar's approximation at level 1
    toys.train(model, optimizer, [tokens], 4)
    torch.testing.assert_close(ours["exp_avg"], theirs["exp_avg"], rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(ours["exp_avg_sq"], 0.001 * squares, rtol=1e-10, atol=1e-18)
    assert not torch.allclose(ours["exp_avg_sq"], theirs["exp_avg_sq"])
    assert "held" not in ours


def test_group_added_later_is_checked_too() -> None:
    model = toys.net()
    branch = model.branch
    del model.branch
    optimizer = timed(model)
    with pytest.raises(memopt.UnsupportedCombination, match="rounds away"):
        optimizer.add_param_group({"params": [("w", branch.weight)], "storage": "8bit"})


def test_remove_gives_gwt_back() -> None:
    plain, model = toys.net(), toys.net()
    toys.train(plain, toys.build("gwt", plain), toys.batches(4))
    optimizer = timed(model)
    toys.train(model, optimizer, toys.batches(4)[:2])
    optimizer.timing.remove()
    toys.train(model, optimizer, toys.batches(4)[2:])
    assert toys.same(plain, model)


@pytest.mark.parametrize("arguments", [{}, {"amsgrad": True}, {"maximize": True}])
def test_adamw_of_one_micro_batch_is_torch_bit_for_bit(arguments) -> None:
    plain, model = toys.net(), toys.net()
    torchs = torch.optim.AdamW(plain.parameters(), lr=0.02, foreach=False, **arguments)
    optimizer = toys.build("adamw", model, **arguments)
    memopt.accumulate_in_backward(optimizer)
    for each, weights in ((torchs, plain), (optimizer, model)):
        toys.train(weights, each, toys.batches(6))
    assert toys.same(plain, model)
    torchs.load_state_dict(optimizer.state_dict())  # and the state is torch's


def test_adamw_of_micro_batches_is_adama() -> None:
    """On torch's state: the same sums of micro-gradients and of their squares."""
    adama, model = toys.net(), toys.net()
    optimizer = toys.build("adamw", model, weight_decay=0.1)
    memopt.accumulate_in_backward(optimizer)
    toys.train(adama, toys.build("adama", adama, weight_decay=0.1), toys.batches(4), 4)
    toys.train(model, optimizer, toys.batches(4), 4)
    assert toys.same(adama, model)
    assert toys.steps_of(optimizer) == {4}
