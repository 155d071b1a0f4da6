"""Weights of every kind: bfloat16, convolutions, vectors and numbers, any strides."""

import pytest
import torch
from torch import nn

from tests.conformance.subjects import Net, Training, moved

law = pytest.mark.law


def trained(subject, model: nn.Module, x: torch.Tensor) -> Training:
    """Three steps that move every parameter of the model."""
    training = subject.start(model)
    before = training.values()
    for _ in range(3):
        training.model(x).square().mean().backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
    after = training.values()
    assert moved(before, after) == training.trained()
    assert all(value.isfinite().all() for value in after.values())
    return training


@law("bf16_weights")
def test_bfloat16_weights(subject) -> None:
    before = subject.start(Net().bfloat16(), lr=0.05)
    start = before.values()
    after = before.run(range(3)).values()
    assert {value.dtype for value in after.values()} == {torch.bfloat16}
    # of numbers near one, such as the norm's, a small rate's step is less than the rounding
    assert moved(start, after) >= {name for name in before.trained() if start[name].ndim > 1}
    assert all(value.isfinite().all() for value in after.values())


@law("convolution")
def test_a_model_of_convolutions(subject) -> None:
    trained(subject, nn.Sequential(nn.Conv2d(5, 7, 3, bias=False)), torch.randn(2, 5, 6, 6))


class Vectors(nn.Module):
    """A vector and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.ones(5))
        self.number = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.vector + self.number


@law("one_dim")
def test_a_model_of_vectors(subject) -> None:
    trained(subject, Vectors(), torch.randn(4, 5))


def laid_out_otherwise(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers, with the last axis outermost in memory."""
    if tensor.ndim < 2:
        return tensor.repeat_interleave(2)[::2].view(tensor.shape) if tensor.ndim else tensor
    return tensor.movedim(-1, 0).contiguous().movedim(0, -1)


@law("strides")
@pytest.mark.variants
@pytest.mark.parametrize("what", ["gradients", "weights"])
def test_strides_make_no_difference(subject, what) -> None:
    plain, strided = subject.start(), subject.start(strided_weights(what == "weights"))
    for step in range(3):
        for training in (plain, strided):
            training.loss(step).backward()
        for param in strided.model.parameters():
            if param.grad is not None and what == "gradients":
                param.grad = laid_out_otherwise(param.grad)
        for training in (plain, strided):
            training.optimizer.step()
            training.optimizer.zero_grad()
    start = subject.start().values()
    for name, value in plain.values().items():
        # sums of another order round otherwise: far less than the weight has moved
        apart, way = (strided.values()[name] - value).abs().max(), (value - start[name]).abs().max()
        assert apart <= 1e-3 * way + 1e-7
    assert moved(start, plain.values()) == plain.trained()


def strided_weights(wanted: bool) -> nn.Module:
    """`Net`, if wanted with weights of other strides."""
    model = Net()
    if wanted:
        for param in model.parameters():
            param.data = laid_out_otherwise(param.data)
        assert not model.tall.weight.is_contiguous()
    return model
