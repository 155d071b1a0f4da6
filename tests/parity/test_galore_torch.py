"""GaLore against its authors' package, galore-torch."""

import pytest
import torch
from torch import nn

from memopt import GaLore

galore_torch = pytest.importorskip("galore_torch")

STEPS, INTERVAL = 7, 3  # refreshes at the first, fourth and seventh step


def trajectory(optimizer: torch.optim.Optimizer, params: list[nn.Parameter]) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        for param in params:
            param.grad = 1e-2 * torch.randn(param.shape, generator=draw)
        optimizer.step()
    return [param.detach() for param in params]


def theirs(params: list[nn.Parameter], side: str, rank: int, weight_decay: float) -> list:
    projected = {"rank": rank, "update_proj_gap": INTERVAL, "scale": 0.25, "proj_type": side}
    groups = [{"params": params[:1], **projected}, {"params": params[1:]}]
    optimizer = galore_torch.GaLoreAdamW(
        groups, lr=0.01, weight_decay=weight_decay, no_deprecation_warning=True
    )
    return trajectory(optimizer, params)


def weights(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(11)
    return [nn.Parameter(torch.randn(shape, generator=draw)) for shape in shapes]


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("side", ["std", "left", "right"])
@pytest.mark.parametrize("shape, rank", [((24, 10), 4), ((10, 24), 4), ((16, 16), 5), ((9, 7), 1)])
def test_trajectory(shape, rank, side, weight_decay) -> None:
    expected = theirs(weights(shape, (6,)), side, rank, weight_decay)
    params = weights(shape, (6,))
    # groups as written for galore-torch work as they are
    projected = {"rank": rank, "update_proj_gap": INTERVAL, "scale": 0.25, "proj_type": side}
    groups = [{"params": params[:1], **projected}, {"params": params[1:]}]
    ours = trajectory(GaLore(groups, lr=0.01, weight_decay=weight_decay), params)
    # float32 rounding of products and of a singular value decomposition: some 1e-6 of a step of
    # 0.0025, seven times; singular values of random matrices are far apart
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=2e-7)


def test_reverse_std_of_a_tall_matrix() -> None:
    expected = theirs(weights((24, 10), (6,)), "reverse_std", 4, 0.0)
    params = weights((24, 10), (6,))
    groups = [{"params": params[:1], "treated": True}, {"params": params[1:], "treated": False}]
    optimizer = GaLore(groups, lr=0.01, rank=4, update_interval=INTERVAL, side="reverse_std")
    torch.testing.assert_close(trajectory(optimizer, params), expected, rtol=1e-6, atol=2e-7)
