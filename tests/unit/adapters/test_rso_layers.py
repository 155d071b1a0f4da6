"""RSO in layers: the weights of `memopt.RSO`, the gradient of B, the bytes for backward."""

import pytest
import torch
from torch import nn

import memopt
from memopt.adapters import RSOLayers


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(24, 40), nn.Linear(40, 16)])
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


def net() -> Net:
    torch.manual_seed(1)
    return Net().double()


def inputs(step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(step)
    return torch.randn(32, 24, dtype=torch.float64, generator=draw)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        model(inputs(step)).square().sum().backward()
        optimizer.step()


def test_it_has_the_weights_of_the_optimizer_form() -> None:
    plain, layered = net(), net()
    options = {"lr": 0.01, "rank": 4, "update_interval": 3, "eps": 1e-12}
    train(plain, memopt.create("rso", plain, projection_seed=7, **options), 8)
    train(layered, RSOLayers(layered, adapter_seed=7, **options), 8)
    memopt.merge_adapters(layered)
    for (name, ours), other in zip(
        layered.named_parameters(), plain.parameters(), strict=True
    ):  # two products in another order, eight steps
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-10, msg=name)


def test_gradient_of_b_is_the_projected_gradient() -> None:
    plain, layered = net(), net()
    RSOLayers(layered, rank=4)
    for model in (plain, layered):
        model(inputs(0)).square().sum().backward()
    for block, adapted in zip(plain.blocks, layered.blocks, strict=True):
        projection = adapted.lora_A["default"].weight
        assert not projection.requires_grad and adapted.base_layer.weight.grad is None
        expected = block.weight.grad @ projection.T
        torch.testing.assert_close(adapted.lora_B["default"].weight.grad, expected)


def saved_for_backward(model: nn.Module) -> int:
    """Bytes of distinct tensors, other than parameters, that one forward keeps for backward."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(inputs(0).requires_grad_()).sum()
    del loss
    return sum(kept.values())


@pytest.mark.parametrize("rank", [2, 8])
def test_a_layer_keeps_its_inputs_in_rank_r(rank) -> None:
    plain, layered = nn.Sequential(nn.Linear(24, 40)).double(), nn.Sequential(nn.Linear(24, 40))
    RSOLayers(layered.double(), rank=rank)
    assert saved_for_backward(plain) == 8 * 32 * 24
    assert saved_for_backward(layered) == 8 * 32 * rank


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"alpha": 3.0}, "RSO has no alpha"),
        ({"dropout": 0.1}, "RSO has no dropout"),
        ({"rank": 0}, "rank must be an integer of 1 or more"),
        ({"update_interval": 0}, "update_interval must be an integer of 1 or more"),
    ],
)
def test_bad_arguments(arguments, message) -> None:
    model = net()
    names = [n for n, _ in model.named_parameters()]
    with pytest.raises(ValueError, match=message):
        RSOLayers(model, **arguments)
    assert [n for n, _ in model.named_parameters()] == names
