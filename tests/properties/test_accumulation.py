"""Accumulation in backward of every variant: one micro-batch is the ordinary step, or a reason."""

import pytest
import torch

import memopt
from tests.properties.variants import EVERY, SHAPES, build, ordinary, parameters, tensors

pytestmark = pytest.mark.usefixtures("small_kernels")


def backward(params: dict[str, torch.nn.Parameter], step: int) -> None:
    """Gradients of the same numbers, whoever takes them."""
    draw = torch.Generator().manual_seed(1000 + step)
    noise = {name: torch.randn(shape, generator=draw) for name, shape in SHAPES.items()}
    sum((param * noise[name]).sum() for name, param in params.items()).backward()


@pytest.mark.parametrize("variant", EVERY.values(), ids=EVERY)
def test_one_micro_batch_is_the_ordinary_step_bit_for_bit(variant) -> None:
    params, twins = parameters(), parameters()
    optimizer = ordinary(build(variant, params.items(), lr=0.03, weight_decay=0.1))
    reasons = [optimizer.no_accumulation(group) for group in optimizer.param_groups]
    if any(reasons):
        with pytest.raises(memopt.UnsupportedCombination, match="cannot accumulate in backward"):
            memopt.accumulate_in_backward(optimizer)
        return
    memopt.accumulate_in_backward(optimizer)
    plain = ordinary(build(variant, twins.items(), lr=0.03, weight_decay=0.1))
    for step in range(7):
        for weights, each in ((params, optimizer), (twins, plain)):
            backward(weights, step)
            each.step()
            each.zero_grad()
    for name in params:
        assert torch.equal(params[name], twins[name]), name
        kept = dict(tensors(plain.state[twins[name]]))
        for key, value in tensors(optimizer.state[params[name]]):
            assert torch.equal(value, kept.pop(key))
        assert not kept
