"""Fira against pytorch-optimizer's, which follows the released code.

Its APOLLO is no oracle: it scales the projected gradient and projects that back, where the paper
scales the gradient itself, and fails where the rank is below both sides.
"""

import pytest
import torch
from torch import nn

import memopt

theirs = pytest.importorskip("pytorch_optimizer")


def trajectory(optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> torch.Tensor:
    draw = torch.Generator().manual_seed(5)
    for step in range(8):
        weight.grad = 1e-2 * (1 + step % 3) * torch.randn(weight.shape, generator=draw)
        optimizer.step()
    return weight.detach()


def start(shape: tuple[int, int]) -> nn.Parameter:
    return nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(11)))


# it renews its basis at steps 1, T, 2T, ..., the released code at 1, 1 + T, ...: T = 1 and a T
# beyond the end are the same in both
@pytest.mark.parametrize("interval", [1, 100])
@pytest.mark.parametrize("side", ["std", "left", "right"])
@pytest.mark.parametrize("shape, rank", [((24, 10), 4), ((10, 24), 4), ((9, 7), 1)])
def test_fira(shape, rank, side, interval) -> None:
    weight = start(shape)
    group = {"params": [weight], "rank": rank, "update_proj_gap": interval, "scale": 0.25}
    group["projection_type"] = side
    expected = trajectory(theirs.Fira([group], lr=0.01, weight_decay=0.1), weight)
    weight = start(shape)
    arguments = {"rank": rank, "update_interval": interval, "side": side, "weight_decay": 0.1}
    ours = trajectory(memopt.Fira([weight], lr=0.01, **arguments), weight)
    # float32 rounding of a singular value decomposition and of norms, eight times
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)
