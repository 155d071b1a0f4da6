"""How many bytes of gradients live at once, counted on storages while backward runs."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import memopt

from . import toys

WIDTH, LAYERS, ROWS = 64, 12, 2


def tower() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers)


def peak_gradient_bytes(
    model: nn.Module, passes: int = 1, backward: Callable[[Tensor], None] = Tensor.backward
) -> int:
    """Largest total size of gradient storages that are alive when a new gradient is born.

    Pre-accumulation hooks see each gradient first; weak references to its storage say later
    whether anyone (``.grad``, autograd, an optimizer) still holds it.
    """
    born: dict[int, tuple[StorageWeakRef, int]] = {}
    peak = 0

    def watch(grad: Tensor) -> None:
        nonlocal peak
        storage = grad.untyped_storage()
        born[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        alive = sum(size for reference, size in born.values() if not reference.expired())
        peak = max(peak, alive)

    hooks = [param.register_hook(watch) for param in model.parameters()]
    inputs = torch.randn(ROWS, WIDTH)
    for _ in range(passes):
        backward(model(inputs).square().mean())
    for hook in hooks:
        hook.remove()
    return peak


LARGEST = WIDTH * WIDTH * 4
# the weight's gradient and, between its birth and its hook, at most its neighbours': the bias's
# gradient of the same layer and the one before (64 floats each)
BOUND = LARGEST + 4 * WIDTH * 4


def build(name: str, model: nn.Module, **arguments) -> torch.optim.Optimizer:
    optimizer = toys.ordinary(name, model, **arguments)
    memopt.update_in_backward(optimizer)
    return optimizer


@pytest.mark.parametrize("name", toys.METHODS)
def test_update_in_backward_holds_one_gradient(name) -> None:
    model = tower()
    optimizer = build(name, model)
    assert peak_gradient_bytes(model) <= BOUND
    optimizer.step()


def test_adama_holds_one_gradient_over_any_number_of_micro_batches() -> None:
    model = tower()
    optimizer = toys.build("adama", model)
    assert peak_gradient_bytes(model, passes=4) <= BOUND
    optimizer.step()


@pytest.mark.parametrize("name", ["galore", "coap"])
@pytest.mark.parametrize("rule", ["adam", "muon"])
def test_projected_accumulation_holds_one_gradient(name, rule) -> None:
    """Over a refresh and beyond; between micro-batches only rank columns stay, in the state."""
    model = tower()
    optimizer = toys.build(name, model, rule=rule)
    memopt.accumulate_in_backward(optimizer)
    for _ in range(2):
        assert peak_gradient_bytes(model, passes=4) <= BOUND
        optimizer.step()


@pytest.mark.parametrize("make", [toys.ordinary, lambda n, m: toys.build(n, m, micro_batches=2)])
def test_accumulating_gradients_holds_them_all(make) -> None:
    """The counter sees what it should: ordinary accumulation, and LOMO over micro-batches."""
    model = tower()
    optimizer = make("lomo", model)
    everything = sum(p.numel() * 4 for p in model.parameters())
    assert peak_gradient_bytes(model, passes=2) >= everything
    optimizer.step()


def test_two_pass_clipping_holds_one_gradient() -> None:
    model = tower()
    optimizer = toys.build("lomo", model, max_norm=1e-3)
    clipped = optimizer.timing.backward
    assert peak_gradient_bytes(model, backward=lambda loss: clipped(lambda: loss)) <= BOUND
