"""Bad input is named: arguments, group keys, gradients that are not finite."""

import copy

import pytest
import torch
from torch import nn

from memopt import NonFiniteGradientError
from tests.conformance.subjects import same

law = pytest.mark.law


@law("arguments")
def test_unknown_arguments_are_named_with_the_nearest(subject) -> None:
    with pytest.raises(ValueError, match="argument.* 'weight_deacy'.*Did you mean 'weight_decay'"):
        subject.start(weight_deacy=0.1)
    with pytest.raises(ValueError, match=r"(?i)learning rate|lr"):
        subject.start(lr=-1.0)


@law("group_keys")
def test_unknown_group_keys_are_named_with_the_nearest(subject) -> None:
    training = subject.start()
    group = {"params": [nn.Parameter(torch.ones(6, 6))], "weight_deacy": 0.1}
    with pytest.raises(ValueError, match="group key 'weight_deacy'.*Did you mean 'weight_decay'"):
        training.optimizer.add_param_group(group)
    assert len(training.optimizer.param_groups) == len(subject.start().optimizer.param_groups)


def poison(training, name: str, value: float) -> None:
    """Makes one element of one gradient not finite, in the next backward only."""
    param = dict(training.model.named_parameters())[training.mover(name)]

    def spoil(grad: torch.Tensor) -> torch.Tensor:
        handle.remove()
        bad = grad.clone()
        bad.view(-1)[0] = value
        return bad

    handle = param.register_hook(spoil)


@law("nonfinite")
def test_a_bad_gradient_is_named_and_a_large_one_is_not(subject) -> None:
    for bad in (float("nan"), float("inf"), -float("inf")):
        for name in ("wide.weight", "tall.bias"):
            training = subject.start().run(range(2))
            poison(training, name, bad)
            named = f"'{training.mover(name)}'.*nonfinite='skip'"
            with pytest.raises(NonFiniteGradientError, match=named):
                training.run(range(2, 3))
    for dtype, size in ((torch.float16, 3e4), (torch.float32, 1e25)):
        model = nn.Sequential(nn.Linear(64, 64, bias=False, dtype=dtype))
        training = subject.start(model)
        for param in model.parameters():  # finite, though its norm overflows
            param.grad = torch.full_like(param, size) if param.requires_grad else None
        training.optimizer.step()


@law("nonfinite")
def test_skipped_updates_are_counted(subject) -> None:
    training = subject.start(nonfinite="skip")
    for step in range(4):
        if step in (0, 2):
            poison(training, "kernel.weight", float("nan"))
        training.run(range(step, step + 1))
    assert training.optimizer.param_groups[0]["skipped_steps"] == 2
    assert all(value.isfinite().all() for value in training.values().values())
    resumed = subject.start(nonfinite="skip")
    resumed.optimizer.load_state_dict(training.saved())
    assert resumed.optimizer.param_groups[0]["skipped_steps"] == 2


@law("nonfinite")
def test_ignoring_never_surfaces_a_decomposition(subject) -> None:
    training = subject.start(nonfinite="ignore")
    poison(training, "wide.weight", float("nan"))
    try:
        training.run(range(1))
    except NonFiniteGradientError as error:
        assert f"'{training.mover('wide.weight')}'" in str(error)
    else:  # no decomposition is needed: the NaN goes where the gradient goes (Lion: its sign is 0)
        name = training.mover("wide.weight")
        reached = {k: v for k, v in training.everything().items() if k.startswith(name)}
        assert any(tensor.isnan().any() for tensor in reached.values())


@law("untouched")
def test_an_error_comes_before_any_change(subject) -> None:
    training = subject.start().run(range(2))
    weights, states = training.values(), copy.deepcopy(training.states())
    poison(training, "kernel.weight", float("nan"))  # the last that backward reaches
    with pytest.raises(NonFiniteGradientError, match="no weight was changed"):
        training.run(range(2, 3))
    assert same(weights, training.values())
    torch.testing.assert_close(training.states(), states, rtol=0, atol=0)


@law("untouched")
def test_a_skipped_step_leaves_no_trace(subject) -> None:
    disturbed, clean = subject.start(nonfinite="skip"), subject.start()
    for step in range(6):
        if step in (0, 3):
            poison(disturbed, "kernel.weight", float("nan"))
            disturbed.run(range(50, 51))
        disturbed.run(range(step, step + 1))
        clean.run(range(step, step + 1))
    assert same(disturbed.values(), clean.values())
