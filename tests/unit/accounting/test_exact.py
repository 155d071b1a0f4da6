"""Predicted bytes, measured bytes and closed forms written out here: equal to 0 bytes."""

import copy
import gc
import math

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

import memopt
from memopt import METHODS
from memopt.accounting import measure, predict, shapes
from memopt.rules import RULES
from memopt.states import blockwise
from memopt.subspaces import wavelet
from tests.unit.accounting.settings import ARGUMENTS, SMALL

RANK, LEVEL = SMALL["rank"], SMALL["level"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class ConvNet(nn.Module):
    """Convolutions of odd widths, a norm with buffers, a bias and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 20, 3)
        self.norm = nn.BatchNorm2d(20)
        self.second = nn.Conv2d(20, 37, 5, bias=False)
        self.head = nn.Linear(37, 11)


def llama(**changes) -> nn.Module:
    return LlamaForCausalLM(LlamaConfig(**shapes.named("llama_micro") | changes))


def encoder() -> nn.Module:
    return BertModel(
        BertConfig(
            vocab_size=50,
            hidden_size=30,
            num_hidden_layers=2,
            num_attention_heads=3,
            intermediate_size=70,
            max_position_embeddings=20,
        )
    )


def partly_frozen() -> nn.Module:
    model = llama()
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    return model


MODELS = {
    "llama": llama,
    "encoder": encoder,
    "conv": ConvNet,
    "tied": lambda: llama(tie_word_embeddings=True),
    "odd": lambda: llama(intermediate_size=85),  # no width of it is a multiple of 2^level
    "frozen": partly_frozen,
}


def backward(model: nn.Module) -> None:
    """Gives every trainable parameter a gradient, with any model and without a forward."""
    trained = [p for p in model.parameters() if p.requires_grad]
    torch.stack([(p.float() * torch.randn(p.shape)).sum() for p in trained]).sum().backward()


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps of the ordinary loop, the last one's gradients kept."""
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()


def optimizer_for(method: str, model: nn.Module, **changes) -> torch.optim.Optimizer:
    return memopt.create(method, model, **({"lr": 1e-3} | ARGUMENTS[method] | changes))


def bytes_of(report) -> tuple[int, int, int]:
    return report.weights, report.states, report.projections


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("method", ARGUMENTS)
def test_predicted_is_measured(method: str, name: str, dtype: str) -> None:
    model = MODELS[name]().to(DTYPES[dtype])
    predicted = predict(model, method, **ARGUMENTS[method])
    optimizer = optimizer_for(method, model)
    for steps in (1, 5):  # after one step, then after six
        train(model, optimizer, steps)
        measured = measure(model, optimizer)
        assert bytes_of(predicted) == bytes_of(measured)
        assert predicted.tensors == measured.tensors
        if METHODS[method].timing == "step":
            assert predicted.gradients == measured.gradients
            assert predicted.groups == measured.groups
            assert predicted.total == measured.total


@pytest.mark.parametrize("storage", ["float32", "bfloat16", "8bit"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", [m for m in ARGUMENTS if "storage" in METHODS[m].arguments()])
def test_predicted_is_measured_in_every_storage(method: str, dtype: str, storage: str) -> None:
    # wide enough for 8-bit blocks: smaller tensors than 4096 elements are not quantised
    model = llama(hidden_size=96, intermediate_size=264).to(DTYPES[dtype])
    predicted = predict(model, method, storage=storage, **ARGUMENTS[method])
    optimizer = optimizer_for(method, model, storage=storage)
    train(model, optimizer, 2)
    assert bytes_of(predicted) == bytes_of(measure(model, optimizer))
    kept = [
        buffer.numel
        for group in optimizer.param_groups
        for param in group["params"]
        for buffer in optimizer.declared(param, group).values()
        if buffer.kind == "moment"
    ]
    coded = storage == "8bit" and max(kept, default=0) >= 4096
    assert any(key.endswith("_absmax") for key in predicted.tensors) == coded


OPTIONS = [  # everything of the constructors that changes what is kept
    *(("gwt", {"rule": name}) for name in RULES),
    *(("gwt", {"axis": name}) for name in ("first", "cheapest")),
    ("gwt", {"level": 0}),
    ("gwt", {"wavelet": "db2"}),
    ("gwt", {"norm_growth_limit": None}),
    ("gwt", {"selection": "largest", "share": 0.3}),
    ("coap", {"rank": None, "rank_ratio": 1.5}),
    ("coap", {"rank": 30}),
    *(("galore", {"side": side}) for side in ("reverse_std", "left", "right")),
    ("galore", {"rank": 10_000}),
    ("fira", {"norm_growth_limit": None}),
    ("apollo", {"keep_projection": True}),
    ("apollo", {"projection": "svd", "rank": 30}),
    ("apollo_mini", {"norm_growth_limit": None}),
    ("flora", {"lr": 1e-3, "beta1": None}),
    ("flora", {"lr": 1e-3, "rank": 30}),
    ("adamw", {"amsgrad": True}),
    ("foam", {"level": 0}),
    ("foam", {"level": 9}),
    ("adafactor", {"beta1": 0.9}),
    ("sgd", {"momentum": 0.9}),
    ("adam8bit", {"storage": "bfloat16"}),
    *((name, {"storage": "8bit"}) for name in ("lion", "adams", "adafactor")),
]


@pytest.mark.parametrize("name", ["odd", "conv"])
@pytest.mark.parametrize(("method", "option"), OPTIONS, ids=str)
def test_predicted_is_measured_with_every_option(method: str, option: dict, name: str) -> None:
    model, arguments = MODELS[name](), ARGUMENTS[method] | option
    optimizer = memopt.create(method, model, **arguments)
    train(model, optimizer, 2)
    predicted, measured = predict(model, method, **arguments), measure(model, optimizer)
    assert predicted.tensors == measured.tensors
    assert predicted.groups == measured.groups


@pytest.mark.parametrize("method", ARGUMENTS)
def test_no_tensor_hides_from_the_report(method: str) -> None:
    """All tensors that creating and stepping the optimizer left alive, found by the collector."""

    def alive() -> dict[int, int]:
        gc.collect()
        tensors = [t for t in gc.get_objects() if issubclass(type(t), torch.Tensor)]
        storages = [t.untyped_storage() for t in tensors]
        return {storage._cdata: storage.nbytes() for storage in storages}

    model = llama()
    train(model, optimizer_for(method, llama()), 1)  # fills caches of constants
    report = predict(model, method, **ARGUMENTS[method])
    before, weights = alive(), sum(p.nbytes for p in model.parameters())
    optimizer = optimizer_for(method, model)
    train(model, optimizer, 3)
    optimizer.zero_grad()
    left = sum(nbytes for key, nbytes in alive().items() if key not in before)
    # beside the state, the timing engine keeps one float32: the squared norm of the gradients
    norm = 0 if METHODS[method].timing == "step" else 4
    adapters = report.weights - weights
    assert left == report.states + report.projections + adapters + norm


@pytest.mark.parametrize("name", ["llama", "tied", "encoder"])
@pytest.mark.parametrize("method", [m for m in ARGUMENTS if memopt.METHODS[m].kind != "adapter"])
def test_gradients_that_live_at_once(method: str, name: str) -> None:
    model = MODELS[name]()
    params, peak = list(model.parameters()), 0

    def watch(_: torch.Tensor) -> None:
        nonlocal peak
        peak = max(peak, sum(p.grad.nbytes for p in params if p.grad is not None))

    for param in params:  # before the optimizer's own hooks: these see each gradient arrive
        param.register_post_accumulate_grad_hook(watch)
    optimizer = optimizer_for(method, model)
    train(model, optimizer, 2)
    largest, everything = max(p.nbytes for p in params), sum(p.nbytes for p in params)
    expected = everything if METHODS[method].timing == "step" else largest
    assert peak == expected
    assert predict(model, method, **ARGUMENTS[method]).gradients == expected


def test_update_in_backward_holds_gradients_over_micro_batches() -> None:
    one, two = (predict("llama_nano", "lomo", micro_batches=n) for n in (1, 2))
    assert one.gradients == 4 * 2048 * 64  # the embedding's
    assert two.gradients == two.weights
    assert predict("llama_nano", "adama", micro_batches=2).gradients == one.gradients


# ---- closed forms of the papers, by parameter name, without memopt's own grouping ------------


def halved(width: int, level: int) -> int:
    for _ in range(level):
        width = math.ceil(width / 2)
    return width


def closed_form(method: str, model: nn.Module) -> int:
    """Bytes of float32 state as the papers' formulas have them."""
    numbers = 0
    for name, param in model.named_parameters():
        treated = param.ndim > 1 and (".self_attn." in name or ".mlp." in name)
        if method in ("lomo", "sgd"):
            continue
        if method in ("adalomo", "adafactor"):  # row and column factors; all of a vector's squares
            numbers += sum(param.shape)
        elif method in ("lion", "adams"):
            numbers += param.numel()
        elif method == "adam8bit" and param.numel() >= 4096:  # in fours of bytes
            numbers += param.numel() / 2 + 2 * math.ceil(param.numel() / 256)
        elif method == "flora":
            short, long = min(param.shape), max(param.shape)
            compressed = param.ndim > 1 and short >= RANK and long <= 4 * short
            numbers += long * RANK if compressed else param.numel()
            numbers += sum(param.shape)
        elif treated and method in ("gwt", "foam"):
            rows, columns = param.shape
            numbers += 2 * rows * halved(columns, LEVEL) + (method == "gwt")
        elif method == "adam_mini":  # one number a head of 8 rows, a row, or a norm
            rows = param.shape[0] if param.ndim > 1 else 1
            heads = "q_proj" in name or "k_proj" in name
            numbers += param.numel() + (rows // 8 if heads else rows)
        elif treated and method == "muon":
            numbers += param.numel()
        elif treated and method in ("lora", "relora", "lora_pre"):
            numbers += 2 * RANK * sum(param.shape)
        elif treated and method in ("coap", "galore"):
            numbers += 2 * max(param.shape) * RANK + min(param.shape) * RANK
        elif treated and method == "rso":
            numbers += 2 * len(param) * RANK
        elif treated and method == "fira":  # and the norm of the residual
            numbers += 2 * max(param.shape) * RANK + min(param.shape) * RANK + 1
        elif treated and method.startswith("apollo"):  # drawn again, not kept: no projection
            numbers += 2 * max(param.shape) * RANK + 1
        else:
            numbers += 2 * param.numel()
            numbers += method == "adamw"  # torch counts the steps in a float32 tensor
    return 4 * numbers


@pytest.mark.parametrize("name", ["llama", "tied", "odd"])
@pytest.mark.parametrize("method", ARGUMENTS)
def test_predicted_is_the_closed_form(method: str, name: str) -> None:
    model = MODELS[name]()
    report = predict(model, method, **ARGUMENTS[method])
    assert report.states + report.projections == closed_form(method, model)


def test_projections_are_apart() -> None:
    model = llama()
    matrices = [p for n, p in model.named_parameters() if ".self_attn." in n or ".mlp." in n]
    expected = 4 * sum(min(p.shape) * RANK for p in matrices)
    assert predict(model, "galore", **ARGUMENTS["galore"]).projections == expected


def test_mixed_precision_adds_a_master_copy() -> None:
    plain, mixed = (predict("llama_nano", "adamw", dtype) for dtype in ("float32", "mixed"))
    count = shapes.parameters("llama_nano")
    assert (mixed.weights, mixed.gradients) == (2 * count, 2 * count)
    assert mixed.states == plain.states + 4 * count
    assert mixed.tensors["master"] == 4 * count


def train_mixed(model: nn.Module, method: str, steps: int) -> tuple:
    """Mixed precision in plain torch: bf16 weights, a float32 copy that the optimizer works on.

    Methods that use gradients in backward get each one, widened, as it comes; the others all of
    them at the update.
    """
    twin = copy.deepcopy(model).float()
    masters = dict(zip(model.parameters(), twin.parameters(), strict=True))
    optimizer = optimizer_for(method, twin)
    early = METHODS[method].timing != "step"

    def forward_gradient(param: torch.Tensor) -> None:
        torch.autograd.backward(masters[param], param.grad.float())
        if early:
            param.grad = None

    if early:
        for param in model.parameters():
            param.register_post_accumulate_grad_hook(forward_gradient)
    for _ in range(steps):
        model.zero_grad()
        backward(model)
        for param in [] if early else model.parameters():
            forward_gradient(param)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for param, master in masters.items():
                param.copy_(master)
    return optimizer, masters


@pytest.mark.parametrize("name", ["llama", "encoder", "conv", "tied"])
@pytest.mark.parametrize("method", [m for m in ARGUMENTS if METHODS[m].kind != "adapter"])
def test_mixed_precision_is_measured(method: str, name: str) -> None:
    model = MODELS[name]().bfloat16()
    predicted = predict(model, method, "mixed", **ARGUMENTS[method])
    before = [p.clone() for p in model.parameters()]
    optimizer, masters = train_mixed(model, method, 2)
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    measured = measure(model, optimizer, masters)
    assert bytes_of(predicted) == bytes_of(measured)
    assert predicted.tensors == measured.tensors
    if METHODS[method].timing == "step":
        assert predicted.groups == measured.groups
    left = {kind: getattr(measured, kind) for kind in ("dtype", "gradients")}
    kept = predicted.gradients if METHODS[method].timing == "step" else 0
    assert left == {"dtype": "mixed", "gradients": kept}


def test_state_of_other_optimizers_is_measured_once() -> None:
    model = llama()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 2)
    report = measure(model, optimizer)
    assert report.states == report.weights == report.gradients == 4 * 58_016
    # two names for one storage are one; a slice keeps all of it alive
    first = next(model.parameters())
    optimizer.state[first] = {"a": torch.zeros(100), "nested": [torch.zeros(50)[:2]]}
    optimizer.state[first]["b"] = optimizer.state[first]["a"][:3]
    assert measure(model, optimizer).states == report.states - first.nbytes + 400 + 200


def test_parameters_outside_the_optimizer_count_as_frozen() -> None:
    model = llama()
    optimizer = torch.optim.SGD(model.model.norm.parameters(), lr=0.1)
    rows = {group.name: group.elements for group in measure(model, optimizer).groups}
    assert rows == {"other": 32, "frozen": 58_016 - 32}


def test_prediction_leaves_the_model_alone() -> None:
    model = llama().double()
    hooks = [p._post_accumulate_grad_hooks for p in model.parameters()]
    for method, arguments in ARGUMENTS.items():
        predict(model, method, "bfloat16", **arguments)
    assert [p._post_accumulate_grad_hooks for p in model.parameters()] == hooks
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("arguments", [{"wavelet": "db2"}, {"storage": "8bit"}])
def test_a_prediction_leaves_nothing_without_values_behind(arguments: dict) -> None:
    """Tables kept for ever may be made first on the meta device, where prediction works."""
    for make in (wavelet.transform, blockwise.code_values, blockwise._tables, blockwise.zero_code):
        make.cache_clear()
    model = nn.Linear(64, 64)
    predict(model, "gwt", level=2, **arguments)
    optimizer = memopt.create("gwt", model, lr=0.1, level=2, **arguments)
    before = model.weight.detach().clone()
    model(torch.ones(1, 64)).square().sum().backward()
    optimizer.step()
    assert torch.isfinite(model.weight).all() and not torch.equal(model.weight, before)
