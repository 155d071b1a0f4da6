"""What a step needs for a moment: `memopt.accounting` knows how much it is, before training."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import memopt
from memopt.accounting import predict
from memopt.accounting.live import transient_of
from tests.properties.variants import EVERY, PLAIN, STORAGES
from tests.unit.accounting.allocator import peak_of
from tests.unit.accounting.settings import ARGUMENTS

# decompositions, and products with a transposed matrix, take room of their own inside an operation
ROOM_INSIDE = ("galore", "fira", "lora_pre", "muon")
# torch's kernels make step counts and lists of their own
OURS = {name: variant for name, variant in EVERY.items() if variant[0] != "adamw"}
STORING = [name for name in PLAIN if "storage" in memopt.METHODS[name].arguments()]


class Net(nn.Module):
    """Both orientations, a convolution, vectors and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(48, 80)
        self.tall = nn.Linear(80, 48)
        self.kernel = nn.Conv2d(12, 24, 3)
        self.scale = nn.Parameter(torch.ones(()))


def steps(net: nn.Module, count: int) -> Any:
    """Fills in fresh gradients, once for each step."""
    draw = torch.Generator().manual_seed(0)
    for _ in range(count):
        for param in (p for p in net.parameters() if p.requires_grad):
            param.grad = torch.randn(param.shape, generator=draw).to(param.dtype)
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("variant", OURS)
def test_prediction_is_the_live_one(variant: str, dtype: torch.dtype) -> None:
    method, arguments = OURS[variant]
    net = Net().to(dtype)
    optimizer = memopt.create(method, net, **({"lr": 1e-3} | arguments))
    live = max(transient_of(optimizer) for _ in steps(net, 8))
    predicted = predict(Net().to(dtype), method, **arguments)
    # the finite check keeps 5 bytes for each of 7 parameters while it looks at them
    assert predicted.transient <= live <= predicted.transient + 64
    assert predicted.transient == max(predicted.transients.values())


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("variant", STORING)
def test_prediction_in_every_storage(variant: str, storage: str) -> None:
    method, arguments = PLAIN[variant]
    arguments = arguments | {"storage": storage}
    net = nn.Sequential(nn.Linear(160, 96, bias=False))  # states large enough for 8-bit blocks
    optimizer = memopt.create(method, net, **({"lr": 1e-3} | arguments))
    live = max(transient_of(optimizer) for _ in steps(net, 8))
    assert predict(net, method, **arguments).transient == live


@pytest.mark.parametrize("method", ARGUMENTS)
def test_prediction_is_what_the_allocator_hands_out(method: str, tmp_path: Path) -> None:
    arguments = ARGUMENTS[method]
    net = nn.Sequential(nn.Linear(256, 384, bias=False))
    predicted = predict(net, method, **arguments).transient  # adapters change the model
    optimizer = memopt.create(method, net, **({"lr": 1e-3} | arguments))
    peaks = [peak_of(optimizer.step, tmp_path) for _ in steps(net, 6)][1:]  # the first makes state
    assert predicted <= max(peaks) + 16
    # 16 bytes: a few scalars
    assert max(peaks) <= predicted + (16 if method not in ROOM_INSIDE else predicted)


def test_what_is_frozen_needs_nothing() -> None:
    net = Net()
    net.wide.requires_grad_(False)
    report = predict(net, "gwt", level=1)
    assert report.transients["frozen"] == 0
    assert set(report.to_dict()["transients"]) == {"treated", "other", "frozen"}
    assert memopt.accounting.measure(net, memopt.create("gwt", net)).transient is None
