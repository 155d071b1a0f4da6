"""FSDP2 on two gloo processes against one process: weights, states, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import memopt
import memopt.distributed
from memopt import accounting
from memopt.distributed import full_state_dict
from memopt.states import sharding
from tests.properties.variants import small

from . import processes

pytestmark = pytest.mark.distributed

STEPS, SAVED_AT = 5, 3
# name -> catalog method, its arguments; refreshes fall on steps 1, 3 and 5
SCENARIOS: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw": ("adamw", {"weight_decay": 0.1}),
    "gwt": ("gwt", {"level": 2, "weight_decay": 0.1}),
    "gwt cheapest": ("gwt", {"level": 1, "axis": "cheapest"}),
    "gwt adafactor": ("gwt", {"level": 1, "rule": "adafactor"}),
    "gwt largest": ("gwt", {"level": 1, "selection": "largest", "selection_interval": 2}),
    "gwt bfloat16": ("gwt", {"level": 1, "storage": "bfloat16"}),
    "galore": ("galore", {"rank": 3, "update_interval": 2}),
    "galore right muon": ("galore", {"rank": 3, "update_interval": 2, "rule": "muon"}),
    "galore 8bit": ("galore", {"rank": 3, "update_interval": 2, "storage": "8bit"}),
    "coap": ("coap", {"rank": 3, "update_interval": 2, "recalibrate_every": 2}),
    "coap adam_mini": ("coap", {"rank_ratio": 2.0, "update_interval": 2, "rule": "adam_mini"}),
    "adama": ("adama", {}),
    "lomo": ("lomo", {"clip_value": 0.3}),
    "adalomo": ("adalomo", {"weight_decay": 0.1}),
}
# every other method of the catalog gets whole parameters and needs nothing of its own
SCENARIOS |= {
    name: (name, small(method))
    for name, method in memopt.METHODS.items()
    if name not in SCENARIOS and "fsdp2" not in method.limits
}
HALVES = ("adamw", "gwt", "galore", "coap", "coap adam_mini", "adama", "lomo", "adalomo")
# no sum over rows but in products with a basis, whose blocks round otherwise, and in GWT's limiter
ROUNDED = {"gwt", "gwt cheapest", "gwt bfloat16", "galore", "coap", "coap adam_mini"}
# used up in backward: name -> catalog method, arguments, timing, micro-batches
TIMED: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "adalomo clipped": ("adalomo", {"max_norm": 0.1}, "own", 1),
    "lomo clipped": ("lomo", {"max_norm": 0.1, "micro_batches": 2}, "own", 2),
    "adama": ("adama", {}, "own", 2),
    "gwt": ("gwt", {"level": 2}, "accumulate_in_backward", 2),
    "galore": ("galore", {"rank": 3, "update_interval": 2}, "update_in_backward", 1),
    "galore accumulated": (
        "galore",
        {"rank": 3, "update_interval": 2},
        "accumulate_in_backward",
        2,
    ),
    "coap accumulated": (
        "coap",
        {"rank": 3, "update_interval": 2, "rule": "adam_mini"},
        "accumulate_in_backward",
        2,
    ),
    "adamw": ("adamw", {}, "update_in_backward", 1),
}


class Net(nn.Module):
    """Tall, wide, square, odd, one-row and 4-D weights, an embedding and vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, 6)
        self.conv = nn.Conv2d(1, 5, (2, 3))
        self.blocks = nn.ModuleList(
            [nn.Linear(25, 9), nn.Linear(9, 14), nn.Linear(14, 14, bias=False), nn.Linear(14, 1)]
        )
        self.out = nn.Linear(1, 4)

    def forward(self, ids: Tensor) -> Tensor:
        embedded = self.embed(ids)
        hidden = torch.cat([self.conv(embedded[:, None]).mean(2).flatten(1), embedded[:, 0, :5]], 1)
        for block in self.blocks:
            hidden = torch.tanh(block(hidden))
        return self.out(hidden).square().mean()


def batch(step: int) -> Tensor:
    """More rows than any rank: vectors of a gradient's null space are drawn from rounding."""
    return torch.randint(0, 11, (32, 5), generator=torch.Generator().manual_seed(step))


def sharded(net: Net) -> Net:
    """FSDP2 as in a transformer, a block at a time, where there is a process group."""
    if distributed.is_initialized():
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
    return net


def build(name: str, dtype: torch.dtype = torch.float32) -> tuple[Net, torch.optim.Optimizer]:
    net = sharded(Net().to(dtype))
    method, arguments = SCENARIOS[name]
    return net, memopt.create(method, net, targets="all-linear", **({"lr": 0.05} | arguments))


def timed(name: str) -> dict[str, Any]:
    """Four updates inside backward, on whole batches; the weights, and the gradient norms."""
    method, arguments, timing, micro_batches = TIMED[name]
    net = sharded(Net())
    optimizer = memopt.create(method, net, targets="all-linear", lr=0.05, **arguments)
    handle = optimizer.timing if timing == "own" else getattr(memopt, timing)(optimizer)
    norms = []
    for step in range(4):
        for ids in batch(step).chunk(micro_batches):
            if "max_norm" in arguments:
                handle.backward(lambda ids=ids: net(ids) / micro_batches)
            else:
                (net(ids) / micro_batches).backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(handle.last_grad_norm)
    return {"weights": weights(net), "norms": norms}


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range, rows: slice) -> None:
    for step in steps:
        net(batch(step)[rows]).backward()
        optimizer.step()
        optimizer.zero_grad()


def weights(net: nn.Module) -> dict[str, Tensor]:
    with torch.no_grad():
        return {name: sharding.whole(p).clone() for name, p in net.named_parameters()}


def load_weights(net: nn.Module, saved: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, param in net.named_parameters():
            sharding.local(param).copy_(sharding.local(sharding.placed(saved[name], param)))


def work(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Every process runs on the whole batch, so that averaged gradients have one process's bits."""
    found: dict[str, Any] = {}
    everything = slice(None)
    for name in SCENARIOS:
        net, optimizer = build(name)
        train(net, optimizer, range(SAVED_AT), everything)
        saved = [weights(net), full_state_dict(optimizer)]
        if rank == 0:
            torch.save(saved, folder / f"{name}.pt")
        train(net, optimizer, range(SAVED_AT, STEPS), everything)
        found[name] = {
            "weights": weights(net),
            "bytes": accounting.measure(net, optimizer),
            "numbers": sum(value.ndim == 0 for value in kept_tensors(optimizer)),
            "plain": [
                value
                for value in kept_tensors(optimizer)
                if value.ndim and not isinstance(value, DTensor)
            ],
        }
        net, optimizer = build(name)  # the checkpoint of one process
        net_state, state = torch.load(folder.parent / f"{name}.pt", weights_only=True)
        load_weights(net, net_state)
        optimizer.load_state_dict(state)
        train(net, optimizer, range(SAVED_AT, STEPS), everything)
        found[name]["from one"] = weights(net)
    for name in HALVES:
        net, optimizer = build(name, torch.float64)
        train(net, optimizer, range(STEPS), slice(16 * rank, 16 * rank + 16))
        found[name]["halves"] = weights(net)
    found |= {f"timed {name}": timed(name) for name in TIMED}
    found["dcp"] = through_checkpoint(folder)
    found["finite"] = non_finite(rank)
    found["exchange"] = exchange_refused()
    return found


def kept_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = optimizer.state.values()
    return [v for state in states for v in state.values() if isinstance(v, Tensor)]


def through_checkpoint(folder: Path) -> bool:
    """torch.distributed.checkpoint saves the sharded states and loads them again."""
    net, optimizer = build("coap")
    train(net, optimizer, range(SAVED_AT), slice(None))
    before = get_optimizer_state_dict(net, optimizer)
    checkpoint.save({"optim": before}, checkpoint_id=folder / "dcp")
    net, optimizer = build("coap")
    train(net, optimizer, range(1), slice(None))  # other states, of the same form
    again = get_optimizer_state_dict(net, optimizer)
    checkpoint.load({"optim": again}, checkpoint_id=folder / "dcp")
    pairs = [
        (value, again["state"][name][key])
        for name, state in before["state"].items()
        for key, value in state.items()
        if isinstance(value, Tensor)
    ]
    assert pairs
    return all(torch.equal(sharding.local(a), sharding.local(b)) for a, b in pairs)


def non_finite(rank: int) -> list[Any]:
    """NaN in the rows of one process: all raise, or all skip."""
    net, optimizer = build("gwt")
    heard = []
    for policy in ("raise", "skip"):
        for group in optimizer.param_groups:
            group["nonfinite"] = policy
        net(batch(0)).backward()
        if rank == 1:
            net.blocks[1].weight.grad.to_local()[0, 0] = torch.nan
        try:
            optimizer.step()
            heard.append(optimizer.param_groups[0]["skipped_steps"])
        except memopt.NonFiniteGradientError as error:
            heard.append(str(error))
        optimizer.zero_grad()
    return heard


def exchange_refused() -> str:
    net = sharded(Net())
    try:
        memopt.distributed.reduce_gradients(memopt.create("lomo", net, lr=0.1))
    except memopt.UnsupportedCombination as error:
        return str(error)
    return ""


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, Any]:
    """One process; its checkpoints lie where the two find them."""
    found: dict[str, Any] = {"folder": tmp_path_factory.mktemp("fsdp2")}
    for name in SCENARIOS:
        net, optimizer = build(name)
        train(net, optimizer, range(SAVED_AT), slice(None))
        torch.save([weights(net), optimizer.state_dict()], found["folder"] / f"{name}.pt")
        train(net, optimizer, range(SAVED_AT, STEPS), slice(None))
        found[name] = {"weights": weights(net), "bytes": accounting.measure(net, optimizer)}
    for name in HALVES:
        net, optimizer = build(name, torch.float64)
        train(net, optimizer, range(STEPS), slice(None))
        found[name]["halves"] = weights(net)
    found |= {f"timed {name}": timed(name) for name in TIMED}
    return found


@pytest.fixture(scope="module")
def spawned(alone) -> list[dict[str, Any]]:
    folder = alone["folder"] / "two"
    folder.mkdir()
    return processes.run(work, 2, folder)


@pytest.mark.parametrize("start", ["weights", "from one"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_equal_gradients_give_one_process(spawned, alone, name, start) -> None:
    """From the start, and from the checkpoint that one process wrote."""
    for found in spawned:
        for key, value in alone[name]["weights"].items():
            if name in ROUNDED:
                # a product of blocks and a sum of sums round otherwise, 1e-7; steps are of 0.05
                torch.testing.assert_close(found[name][start][key], value, rtol=1e-5, atol=1e-5)
            else:
                assert torch.equal(found[name][start][key], value), key


@pytest.mark.parametrize("name", HALVES)
def test_halves_of_the_batch_give_one_process(spawned, alone, name) -> None:
    """In float64, where rounding of the averages (1e-16, through a decomposition) is far away."""
    for found in spawned:
        for key, value in alone[name]["halves"].items():
            torch.testing.assert_close(found[name]["halves"][key], value, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", TIMED)
def test_updates_in_backward(spawned, alone, name) -> None:
    expected = alone[f"timed {name}"]
    for found in spawned:
        ours = found[f"timed {name}"]
        assert ours["norms"] == pytest.approx(expected["norms"], rel=1e-5)
        for key, value in expected["weights"].items():
            torch.testing.assert_close(ours["weights"][key], value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SCENARIOS)
def test_checkpoint_of_two_goes_on_in_one(alone, spawned, name) -> None:
    net, optimizer = build(name)
    net_state, state = torch.load(alone["folder"] / "two" / f"{name}.pt", weights_only=True)
    load_weights(net, net_state)
    optimizer.load_state_dict(state)
    train(net, optimizer, range(SAVED_AT, STEPS), slice(None))
    for key, value in weights(net).items():
        torch.testing.assert_close(value, alone[name]["weights"][key], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", SCENARIOS)
def test_state_is_divided(spawned, alone, name) -> None:
    """Single numbers are on both; all else once, and neither holds more than its rows."""
    whole = kept(alone[name]["bytes"])
    parts = [kept(found[name]["bytes"]) for found in spawned]
    twice = 4 * spawned[0][name]["numbers"]
    assert sum(parts) == whole + twice
    assert max(parts) <= 0.62 * whole  # odd sizes: the first process has the longer half
    for found in spawned:
        assert found[name]["plain"] == []


def kept(report: accounting.Report) -> int:
    return report.states + report.projections


def test_torchs_checkpoint_and_what_is_refused(spawned) -> None:
    for found in spawned:
        assert "FSDP2 averages gradients already" in found["exchange"]
        assert found["dcp"]
        assert "'blocks.1.weight' is not finite" in found["finite"][0]
        assert found["finite"][1] == 1
