"""What the tests of Fira, APOLLO and Flora share: numbers, gradients for the limiter, a loop."""

import torch
from torch import Tensor, nn


def draw(*shape: int, seed: int) -> Tensor:
    """Normal numbers in float64."""
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=source)


def gradients(shape: tuple[int, int]) -> list[Tensor]:
    """Sizes that grow and fall, so that the limiter is at work in some steps and not in others."""
    sizes = [1.0, 3.0, 0.2, 0.2, 10.0, 1.0, 1.0, 0.01]
    return [draw(*shape, seed=step) * size for step, size in enumerate(sizes)]


def train(optimizer: torch.optim.Optimizer, weight: nn.Parameter, grads: list[Tensor]) -> Tensor:
    """A step on each gradient; the weight at the end."""
    for grad in grads:
        weight.grad = grad.clone()
        optimizer.step()
    return weight.detach()
