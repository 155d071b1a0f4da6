"""LoRA: the function of the model, torch's AdamW on the same factors, freezing, merging, errors."""

import copy
import pickle
import sys

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import memopt
from memopt import UnsupportedCombination

METHODS = ("lora", "relora")


class Net(nn.Module):
    """Two repeated blocks with m != n, biases and a convolution; an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(
            [
                nn.ModuleDict(
                    {
                        "up": nn.Linear(6, 10),
                        "conv": nn.Conv1d(10, 8, 3, padding=1),
                        "down": nn.Linear(8, 6),
                    }
                )
                for _ in range(2)
            ]
        )
        self.head = nn.Linear(6, 11)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(ids)
        for block in self.blocks:
            inner = block["conv"](block["up"](hidden).relu().mT).mT
            hidden = hidden + block["down"](inner.relu())
        return self.head(hidden)


def net(dtype: torch.dtype = torch.float32) -> Net:
    torch.manual_seed(1)
    return Net().to(dtype)


IDS = torch.tensor([[1, 4, 7, 2], [9, 0, 3, 3]])


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(IDS).flatten(0, 1), IDS.roll(-1, 1).flatten()).backward()
        optimizer.step()


def create(name: str, model: nn.Module, **arguments) -> torch.optim.Optimizer:
    return memopt.create(name, model, **{"rank": 3, "dropout": 0.0, "lr": 0.05, **arguments})


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_adapters_do_not_change_the_function_at_first(name, dtype) -> None:
    model = net(dtype)
    before = model(IDS)
    create(name, model)
    # the added zeros come in another memory layout, so later sums may be taken in another order
    tolerance = 16 * torch.finfo(dtype).eps
    torch.testing.assert_close(model(IDS), before, rtol=tolerance, atol=tolerance)


def test_it_is_adam_on_the_factors_of_a_model_written_out_here() -> None:
    """``y = x (W0 + alpha/r B A)^T + b`` by hand, trained by torch's AdamW."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3)).double()
    weight, bias = model[0].weight.detach().clone(), model[0].bias.detach().clone()
    optimizer = memopt.create(
        "lora", model, targets=["0"], rank=2, alpha=6.0, dropout=0.0, lr=0.1, eps=1e-150,
        weight_decay=0.2,
    )  # fmt: skip
    layer = model[0]
    down = layer.lora_A["default"].weight.detach().clone().requires_grad_()
    up = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True)
    head = copy.deepcopy(model[1])
    bias.requires_grad_()
    params = [down, up, bias, *head.parameters()]
    oracle = torch.optim.AdamW(params, lr=0.1, eps=1e-150, weight_decay=0.2)
    for step in range(6):
        x = torch.randn(7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        oracle.zero_grad()
        head(x @ (weight + 3.0 * up @ down).T + bias).square().sum().backward()
        oracle.step()
    assert down.grad is not None and down.grad.any()
    torch.testing.assert_close(layer.lora_A["default"].weight, down, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.lora_B["default"].weight, up, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.base_layer.weight.detach(), weight, rtol=0, atol=0)
    torch.testing.assert_close(model[1].weight, head.weight, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", METHODS)
def test_initial_values_are_kaiming_s_and_follow_names(name) -> None:
    model, other = net(), net()
    create(name, model)
    other.blocks.insert(0, nn.ModuleDict())  # names move, the draws with them
    state = torch.get_rng_state()
    create(name, other)
    assert torch.equal(torch.get_rng_state(), state)
    first = model.blocks[1]["up"].lora_A["default"].weight.detach()
    assert torch.equal(other.blocks[1]["up"].lora_A["default"].weight, first)
    assert not torch.equal(other.blocks[2]["up"].lora_A["default"].weight, first)
    assert first.abs().max() <= 6**-0.5 and first.std() == pytest.approx((3 * 6) ** -0.5, rel=0.3)
    assert not model.blocks[0]["up"].lora_B["default"].weight.any()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("rest", ["adam", "frozen", ["head"]])
def test_who_is_trained(name, rest) -> None:
    model = net()
    model.blocks[0]["down"].bias.requires_grad_(False)
    create(name, model, rest=rest)
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    adapters = {
        f"blocks.{i}.{layer}.lora_{side}.default.weight"
        for i in (0, 1) for layer in ("up", "conv", "down") for side in "AB"
    }  # fmt: skip
    biases = {f"blocks.{i}.{layer}.base_layer.bias" for i in (0, 1) for layer in ("up", "conv")}
    rests = {
        "adam": biases
        | {"blocks.1.down.base_layer.bias", "embed.weight", "head.weight", "head.bias"},
        "frozen": set(),
    }
    wanted = {"head.weight", "head.bias"} if isinstance(rest, list) else rests[rest]
    assert trained == adapters | wanted


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_merging_gives_the_ordinary_model_back(name, dtype) -> None:
    model, untouched = net(dtype), net(dtype)
    optimizer = create(name, model, lr=0.01)
    train(model, optimizer, 5)
    with_adapters = model(IDS)
    assert memopt.merge_adapters(model) is model
    # one rounding of the weights: 2^-24, 2^-53, 2^-9 relative, through five layers
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-13, torch.bfloat16: 0.1}[dtype]
    torch.testing.assert_close(model(IDS), with_adapters, rtol=tolerance, atol=tolerance)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in untouched.named_parameters()]
    assert all(p.requires_grad for p in model.parameters())
    assert not torch.equal(model.blocks[0]["up"].weight, untouched.blocks[0]["up"].weight)
    create(name, model)  # and may have adapters again


def test_the_merge_is_peft_s_own() -> None:
    model, theirs = net(torch.float64), net(torch.float64)
    optimizer = create("lora", model, lr=0.01, alpha=5.0)
    train(model, optimizer, 4)
    config = LoraConfig(r=3, lora_alpha=5.0, target_modules=["up", "conv", "down"])
    inject_adapter_in_model(config, theirs)
    theirs.load_state_dict(model.state_dict())
    for module in theirs.modules():
        if hasattr(module, "merge"):
            module.merge()
    memopt.merge_adapters(model)
    for i in (0, 1):
        for layer in ("up", "conv", "down"):
            torch.testing.assert_close(
                model.blocks[i][layer].weight, theirs.blocks[i][layer].base_layer.weight
            )


@pytest.mark.parametrize("name", METHODS)
def test_copies_go_on_alike(name) -> None:
    model = net()
    optimizer = create(name, model, **({"update_interval": 3} if name == "relora" else {}))
    train(model, optimizer, 2)
    twins = [copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))]
    train(model, optimizer, 3)
    for twin, twin_optimizer in twins:
        train(twin, twin_optimizer, 3)
        for ours, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.equal(ours, other)


def test_llama_treats_attention_and_mlp() -> None:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 32}
    model = LlamaForCausalLM(
        LlamaConfig(**shape, num_attention_heads=2, num_key_value_heads=1, use_cache=False)
    )
    optimizer = memopt.create("lora", model, rank=2)
    layers = {name.rsplit(".lora_", 1)[0] for name, _ in optimizer.treated_parameters()}
    wanted = [f"self_attn.{x}_proj" for x in "qkvo"] + [f"mlp.{x}_proj" for x in ("gate", "up")]
    wanted.append("mlp.down_proj")
    assert layers == {f"model.layers.{i}.{name}" for i in (0, 1) for name in wanted}


# ---- what is refused, and leaves the model as it was -----------------------------------------


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank must be an integer of 1 or more"),
        ({"rank": 2.0}, "rank must be an integer"),
        ({"alpha": 0}, "alpha must be a finite number above zero"),
        ({"dropout": 1.0}, "dropout must be below 1"),
        ({"dropout": -0.1}, "dropout must be a finite number of zero or more"),
        ({"rest": "adma"}, "unknown rest 'adma'. Did you mean 'adam'"),
        ({"rest": ["haed"]}, "unknown part of a name in rest 'haed'. Did you mean 'head"),
        ({"lr": -1.0}, "lr must be a finite number"),
        ({"betas": (0.9, 1.0)}, r"betas must each be in \[0, 1\)"),
        ({"rnk": 3}, "unknown argument of (re)?lora 'rnk'. Did you mean 'rank'"),
        ({"targets": ["downn"]}, "unknown target 'downn'"),
    ],
)
def test_bad_arguments_leave_the_model_as_it_was(name, arguments, message) -> None:
    model = net()
    model.embed.weight.requires_grad_(False)
    names = [(n, p.requires_grad) for n, p in model.named_parameters()]
    with pytest.raises(ValueError, match=message):
        create(name, model, **arguments)
    assert [(n, p.requires_grad) for n, p in model.named_parameters()] == names


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.layers[1].weight = self.layers[0].weight


@pytest.mark.parametrize(
    ("model", "targets", "message"),
    [
        (Tied(), "auto", r"shared by layers\.0, layers\.1"),
        (nn.Linear(4, 4), "auto", "the model is itself the layer"),
        (nn.TransformerEncoderLayer(8, 2), ["out_proj"], "belongs to no layer of nn.Linear"),
        (nn.Sequential(nn.Conv1d(4, 4, 3, groups=2)), "auto", "belongs to no layer of nn.Linear"),
        (nn.Sequential(nn.Bilinear(3, 3, 3)), ["0"], "belongs to no layer of nn.Linear"),
    ],
)
def test_layers_that_cannot_have_one(model, targets, message) -> None:
    names = [n for n, _ in model.named_parameters()]
    with pytest.raises(UnsupportedCombination, match=message):
        memopt.create("lora", model, targets=targets)
    assert [n for n, _ in model.named_parameters()] == names


def test_a_second_set_of_adapters_is_refused() -> None:
    model = net()
    create("lora", model)
    with pytest.raises(UnsupportedCombination, match=r"merge_adapters\(model\) first"):
        create("relora", model)


def test_missing_peft_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModuleNotFoundError, match="need the package peft .*pip install peft"):
        create("lora", net())
