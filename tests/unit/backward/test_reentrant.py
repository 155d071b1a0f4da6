"""Reentrant checkpoints, whose layers may get their gradient in parts: one update, of the whole."""

import functools
import gc
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import memopt
from memopt.errors import MiniBatchError, NonFiniteGradientError

from . import toys
from .test_memory import peak_gradient_bytes

again = functools.partial(checkpoint, use_reentrant=True)


class Shared(nn.Module):
    """One layer used outside and inside a checkpoint, in either order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.stem, self.layer, self.head = (nn.Linear(6, 6) for _ in range(3))
        self.order = order

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = self.stem(hidden)
        for place in self.order:
            hidden = torch.tanh(again(self.layer, hidden) if place == "i" else self.layer(hidden))
        return self.head(hidden).square().mean()


class Inner(nn.Module):
    """A checkpoint in a checkpoint, which share a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.layer, self.head = (nn.Linear(6, 6) for _ in range(3))

    def block(self, hidden: Tensor) -> Tensor:
        return self.layer(again(self.layer, torch.tanh(self.layer(hidden))))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(again(self.block, self.stem(inputs))).square().mean()


class Tied(nn.Module):
    """An embedding whose weight is also the head's, which lies in a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.block = nn.Embedding(6, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 6, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.embedding(inputs.argmax(1))
        hidden = again(lambda hidden: self.head(torch.tanh(self.block(hidden))), hidden)
        return hidden.square().mean()


MODELS = {
    "outside, then inside": functools.partial(Shared, "oi"),
    "inside, then outside": functools.partial(Shared, "io"),
    "two checkpoints": functools.partial(Shared, "ii"),
    "all around": functools.partial(Shared, "oiioi"),
    "nested": Inner,
    "tied": Tied,
}
UPDATES = ("lomo", "adalomo", "adamw", "galore")
ACCUMULATES = ("adama", "adamw", "gwt", "galore", "coap")
EVERY_MODEL = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def model_of(make) -> nn.Module:
    torch.manual_seed(0)
    return make()


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    return toys.ordinary(name, model, targets=lambda _, param: param.ndim == 2)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, micro_batches: int) -> None:
    torch.manual_seed(1)
    for _ in range(4):
        for _ in range(micro_batches):
            (model(torch.randn(3, 6)) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()


@EVERY_MODEL
@pytest.mark.parametrize("name", UPDATES)
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_update_in_backward_is_that_of_step(make, name, micro_batches) -> None:
    plain, model = model_of(make), model_of(make)
    train(plain, optimizer_of(name, plain), micro_batches)
    optimizer = optimizer_of(name, model)
    memopt.update_in_backward(optimizer, micro_batches)
    train(model, optimizer, micro_batches)
    assert toys.same(plain, model)
    assert toys.steps_of(optimizer) <= {4}


@EVERY_MODEL
@pytest.mark.parametrize("name", ACCUMULATES)
def test_accumulation_of_one_micro_batch_is_the_step(make, name) -> None:
    plain, model = model_of(make), model_of(make)
    train(plain, optimizer_of(name, plain), 1)
    optimizer = optimizer_of(name, model)
    memopt.accumulate_in_backward(optimizer)
    train(model, optimizer, 1)
    assert toys.same(plain, model)
    assert toys.steps_of(optimizer) == {4}


@EVERY_MODEL
def test_adama_takes_whole_micro_gradients(make) -> None:
    """v has the squares of sums over the uses, not of parts; no count of passes is asked for."""
    model = model_of(make)
    optimizer = optimizer_of("adama", model)
    memopt.accumulate_in_backward(optimizer)
    twin, squares = model_of(make), {}
    inputs = torch.randn(3, 3, 6)
    for part in inputs:
        twin.zero_grad()
        (twin(part) / 3).backward()
        for name, param in twin.named_parameters():
            squares[name] = squares.get(name, 0) + 0.001 * param.grad**2
        (model(part) / 3).backward()
    optimizer.step()
    for name, param in model.named_parameters():
        found = optimizer.state[param]["exp_avg_sq"]
        torch.testing.assert_close(found, squares[name], rtol=1e-5, atol=1e-12)


def test_only_the_running_checkpoint_holds_gradients() -> None:
    """Three of twelve layers at a time; layers outside none."""
    width, model = 64, nn.Sequential(*(nn.Linear(64, 64) for _ in range(12)))
    optimizer = toys.build("lomo", model)

    def loss(inputs: Tensor) -> Tensor:
        hidden = inputs.requires_grad_()
        for first in range(0, 12, 3):
            hidden = again(model[first : first + 3], hidden)
        return hidden.sum()

    watched = _Callable(loss, model)
    layer = (width * width + width) * 4
    assert 3 * layer <= peak_gradient_bytes(watched) <= 3 * layer + 4 * width * 4
    optimizer.step()


class _Callable(nn.Module):
    def __init__(self, function, model: nn.Module) -> None:
        super().__init__()
        self.function, self.model = function, model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs)


LAYER = nn.Linear(6, 6)
BOX = type("Box", (), {"layer": LAYER})()


def by_global(hidden: Tensor) -> Tensor:
    return LAYER(hidden)


def out_of_sight(hidden: Tensor) -> Tensor:
    return BOX.layer(hidden)


@pytest.mark.parametrize("function", [by_global, out_of_sight])
def test_layers_reached_by_name(function) -> None:
    """A global layer is found. One in a global object is not: then the second part is an error."""
    optimizer = memopt.LOMO(LAYER.named_parameters(), lr=0.1)
    loss = LAYER(again(function, torch.ones(2, 6, requires_grad=True))).sum()
    if function is out_of_sight:
        with pytest.raises(
            MiniBatchError, match=r"'(weight|bias)' received 2.*use_reentrant=False"
        ):
            loss.backward()
    else:
        whole = torch.autograd.grad(LAYER(LAYER(torch.ones(2, 6))).sum(), LAYER.weight)
        before = LAYER.weight.detach().clone()
        loss.backward()
        optimizer.step()
        torch.testing.assert_close(before - LAYER.weight, 0.1 * whole[0])
    optimizer.zero_grad() if function is by_global else optimizer.timing._reset()
    optimizer.timing.remove()


@pytest.mark.parametrize("name", ["lomo", "adama"])
def test_nan_in_a_checkpoint_names_the_parameter(name) -> None:
    model = model_of(MODELS["two checkpoints"])
    optimizer = toys.build(name, model)
    model.layer.bias.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(NonFiniteGradientError, match=r"layer\.bias"):
        model(torch.randn(3, 6)).backward()
    assert optimizer.timing is not None


def test_the_backward_after_a_broken_one_is_a_new_one() -> None:
    plain, model = model_of(MODELS["all around"]), model_of(MODELS["all around"])
    optimizer = toys.build("lomo", model, micro_batches=2)
    hook = model.stem.weight.register_hook(lambda grad: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(torch.randn(3, 6)).backward()
    hook.remove()
    optimizer.zero_grad()  # nothing was used yet
    train(plain, optimizer_of("lomo", plain), 2)
    train(model, optimizer, 2)
    assert toys.same(plain, model)


def test_one_graph_run_backward_twice() -> None:
    """Two backwards of the same loss are two micro-batches."""
    plain, model = model_of(MODELS["all around"]), model_of(MODELS["all around"])
    optimizers = optimizer_of("lomo", plain), toys.build("lomo", model, micro_batches=2)
    inputs = torch.randn(3, 6)
    for each, optimizer in zip((plain, model), optimizers, strict=True):
        loss = each(inputs)
        loss.backward(retain_graph=True)
        loss.backward()
        optimizer.step()
    assert toys.same(plain, model)


def test_exact_clipping() -> None:
    plain, model = model_of(MODELS["all around"]), model_of(MODELS["all around"])
    ordinary = optimizer_of("lomo", plain)
    optimizer = toys.build("lomo", model, max_norm=1e-3)
    inputs = torch.randn(3, 6)
    plain(inputs).backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 1e-3)
    ordinary.step()
    optimizer.timing.backward(lambda: model(inputs))
    optimizer.step()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["tied", "two checkpoints"])
def test_a_closure_over_too_many_objects_could_use_every_parameter(kind, monkeypatch) -> None:
    """Then all gradients wait, which is right, and dear."""
    monkeypatch.setattr(memopt.backward.uses, "MOST_OBJECTS", 3)
    plain, model = model_of(MODELS[kind]), model_of(MODELS[kind])
    train(plain, optimizer_of("lomo", plain), 1)
    optimizer = toys.build("lomo", model)
    train(model, optimizer, 1)
    assert toys.same(plain, model)


def test_nothing_holds_the_graph_afterwards() -> None:
    """Frames were looked at to find it: kept, they would keep activations."""
    model = model_of(MODELS["all around"])
    optimizer = toys.build("lomo", model)
    gc.disable()
    try:
        loss = model(torch.randn(3, 6))
        loss.backward()
        graph = weakref.ref(loss)
        del loss
        assert graph() is None
    finally:
        gc.enable()
    optimizer.step()
