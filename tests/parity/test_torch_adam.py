"""Where a method reduces to Adam, it must be torch's Adam."""

import pytest
import torch
from torch import nn

import memopt

SHAPES = {"matrix": (8, 12), "vector": (7,), "scalar": ()}


def gradients(steps: int, dtype: torch.dtype = torch.float64) -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(3)
    return [
        {k: torch.randn(s, dtype=dtype, generator=draw) for k, s in SHAPES.items()}
        for _ in range(steps)
    ]


def train(optimizer: torch.optim.Optimizer, params: dict[str, nn.Parameter], steps: int) -> dict:
    for each in gradients(steps):
        for name, param in params.items():
            param.grad = each[name]
        optimizer.step()
    return {name: param.detach() for name, param in params.items()}


def parameters() -> dict[str, nn.Parameter]:
    draw = torch.Generator().manual_seed(4)
    return {
        k: nn.Parameter(torch.randn(s, dtype=torch.float64, generator=draw))
        for k, s in SHAPES.items()
    }


REDUCED = {
    "GWT at level 0": (memopt.GWT, {"level": 0, "scale": 1.0, "norm_growth_limit": None}),
    "COAP at full rank": (memopt.COAP, {"rank": 8}),
}


@pytest.mark.parametrize("factory, arguments", REDUCED.values(), ids=REDUCED)
def test_reduces_to_torch_adamw(factory, arguments) -> None:
    expected_params = parameters()
    # eps = 0: torch scales eps by sqrt(1 - b2^t), the papers' codes do not
    adamw = torch.optim.AdamW(expected_params.values(), lr=0.02, weight_decay=0.0, eps=0.0)
    expected = train(adamw, expected_params, 15)
    params = parameters()
    extra = nn.Parameter(torch.zeros(20, 20))  # COAP wants something of more than rank 8
    optimizer = factory([*params.values(), extra], lr=0.02, eps=0.0, **arguments)
    ours = train(optimizer, params, 15)
    torch.testing.assert_close(ours, expected, rtol=1e-11, atol=1e-11)


def test_weight_decay_of_plain_parameters_is_decoupled() -> None:
    params, twin = parameters(), parameters()
    decayed = memopt.GWT(params.values(), lr=0.02, weight_decay=0.5)
    plain = memopt.GWT(twin.values(), lr=0.02)
    for optimizer, each in ((decayed, params), (plain, twin)):
        train(optimizer, each, 1)
    for name in SHAPES:
        torch.testing.assert_close(params[name].detach(), twin[name].detach() * (1 - 0.02 * 0.5))


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "8bit"])
@pytest.mark.parametrize(
    "factory, arguments",
    [
        (memopt.GaLore, {"rank": 1, "scale": 1.0}),
        (memopt.COAP, {"rank_ratio": 1.0}),
        (memopt.GWT, {"level": 0, "scale": 1.0, "norm_growth_limit": None}),
    ],
)
def test_one_step_counter(factory, arguments, storage) -> None:
    # a counter ticked twice would end at 0.72876 (unsloth, pull 10842)
    param = nn.Parameter(torch.ones(1, 1))
    optimizer = factory([param], lr=0.1, storage=storage, **arguments)
    for _ in range(3):
        param.grad = torch.ones(1, 1)
        optimizer.step()
    # bfloat16 moments: eight bits of m and v, each rounded three times
    assert param.item() == pytest.approx(0.7, abs=3e-3 if storage == "bfloat16" else 1e-5)
    assert optimizer.state[param]["step"] == 3


def test_adamw_of_the_catalog_is_torchs() -> None:
    models = []
    for make in (
        lambda model: memopt.create("adamw", model, lr=0.01, weight_decay=0.1),
        lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1),
    ):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 2))
        optimizer = make(model)
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(3, 6)).square().sum().backward()
            optimizer.step()
        models.append(model.state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
