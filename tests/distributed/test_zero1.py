"""ZeRO-1 AdamW on two gloo processes against torch.optim.AdamW on one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import memopt
from memopt import accounting

from . import processes

pytestmark = pytest.mark.distributed

STEPS, SAVED_AT = 5, 3
ARGUMENTS = {"lr": 0.02, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 12), nn.Tanh(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3))


def batch(step: int) -> Tensor:
    return torch.randn(8, 7, generator=torch.Generator().manual_seed(step))


def train(net: nn.Module, optimizer: torch.optim.Optimizer, steps: range, part: slice) -> None:
    """Under a schedule, which ZeRO must hand on to its inner optimizer."""
    for step in steps:
        for group in optimizer.param_groups:
            group["lr"] = ARGUMENTS["lr"] / (1 + step)
        optimizer.zero_grad()
        net(batch(step)[part]).square().mean().backward()
        optimizer.step()


def weights(net: nn.Module) -> list[Tensor]:
    return [param.detach().clone() for param in net.parameters()]


def alone(net: nn.Module, groups: Any = None) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups or net.parameters(), **ARGUMENTS)


def work(rank: int, size: int, folder: Path) -> dict[str, Any]:
    """Whole batches on each process (equal gradients), then halves of them under DDP."""
    everything = slice(None)
    found: dict[str, Any] = {}

    net = model()
    optimizer = memopt.create("zero1_adamw", net, **ARGUMENTS)
    train(net, optimizer, range(SAVED_AT), everything)
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        torch.save([net.state_dict(), optimizer.state_dict()], folder / "saved.pt")
    train(net, optimizer, range(SAVED_AT, STEPS), everything)
    found["whole"] = weights(net)
    found["bytes"] = accounting.measure(net, optimizer).states
    torch.distributed.barrier()

    for name, path in (("resumed", folder / "saved.pt"), ("from one", folder.parent / "one.pt")):
        net = model()
        optimizer = memopt.create("zero1_adamw", net, **ARGUMENTS)
        net_state, state = torch.load(path, weights_only=True)
        before = copy.deepcopy(state)
        net.load_state_dict(net_state)
        optimizer.load_state_dict(state)
        train(net, optimizer, range(SAVED_AT, STEPS), everything)
        found[name] = weights(net)
        found[f"{name}: dict untouched"] = equal(state, before)
        found[f"{name}: bytes"] = accounting.measure(net, optimizer).states

    net = model()
    half = batch(0).shape[0] // size
    optimizer = memopt.ZeRO1AdamW(
        [{"params": net[:2].named_parameters()}, {"params": net[2:].parameters(), "eps": 1e-3}],
        **ARGUMENTS,
    )
    train(
        DistributedDataParallel(net),
        optimizer,
        range(STEPS),
        slice(rank * half, (rank + 1) * half),
    )
    found["halves"] = weights(net)
    shares = memopt.ZeRO1AdamW.shares(optimizer.param_groups, size)
    dealt = optimizer._partition_parameters()  # torch's own
    found["shares"] = [{id(p) for p in share} for share in shares] == [
        {id(p) for group in groups for p in group["params"]} for groups in dealt
    ]
    return found


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> dict[str, Any]:
    """One process; its checkpoint at the third step lies where the two find it."""
    folder = tmp_path_factory.mktemp("zero1")
    net = model()
    optimizer = alone(net)
    train(net, optimizer, range(SAVED_AT), slice(None))
    torch.save([net.state_dict(), optimizer.state_dict()], folder / "one.pt")
    train(net, optimizer, range(SAVED_AT, STEPS), slice(None))
    return {"weights": weights(net), "folder": folder}


@pytest.fixture(scope="module")
def spawned(reference) -> list[dict[str, Any]]:
    folder = reference["folder"] / "two"
    folder.mkdir()
    return processes.run(work, 2, folder)


@pytest.mark.parametrize("name", ["whole", "resumed", "from one"])
def test_bits_of_adamw_on_equal_gradients(spawned, reference, name) -> None:
    for found in spawned:
        assert all(map(torch.equal, found[name], reference["weights"]))


def test_two_to_one_process(spawned, reference) -> None:
    net = model()
    optimizer = alone(net)
    net_state, state = torch.load(reference["folder"] / "two" / "saved.pt", weights_only=True)
    net.load_state_dict(net_state)
    optimizer.load_state_dict(state)
    train(net, optimizer, range(SAVED_AT, STEPS), slice(None))
    assert all(map(torch.equal, weights(net), reference["weights"]))


def test_ddp_on_halves_of_the_batch_is_one_process(spawned) -> None:
    net = model()
    groups = [{"params": net[:2].parameters()}, {"params": net[2:].parameters(), "eps": 1e-3}]
    train(net, alone(net, groups), range(STEPS), slice(None))
    for found in spawned:
        assert all(map(torch.equal, found["halves"], spawned[0]["halves"]))
        # a mean of two means rounds otherwise than one mean: 1e-7 of the gradient, which Adam
        # turns into as much of a step of at most lr
        torch.testing.assert_close(found["halves"], weights(net), rtol=1e-5, atol=1e-6)


def test_bytes_are_those_predicted(spawned) -> None:
    whole = accounting.predict(model(), "adamw").states
    kept = [found["bytes"] for found in spawned]
    # dealt out largest first: 84, 5 here; 60, 15, 12, 3 there; a step count for each
    assert kept == [8 * (84 + 5) + 2 * 4, 8 * (60 + 15 + 12 + 3) + 4 * 4]
    assert sum(kept) == whole
    assert max(kept) == accounting.predict(model(), "zero1_adamw", processes=2).states
    for found in spawned:
        assert found["resumed: bytes"] == found["bytes"]  # torch's class keeps them twice
        assert found["resumed: dict untouched"]
        assert found["from one: dict untouched"]
        assert found["shares"]


def test_shares_of_one_process_and_refusals() -> None:
    assert (
        accounting.predict(model(), "zero1_adamw").states
        == accounting.predict(model(), "adamw").states
    )
    with pytest.raises(ValueError, match="processes=2: gwt keeps the same on every process"):
        accounting.predict("llama_micro", "gwt", processes=2)
    with pytest.raises(memopt.UnsupportedCombination, match="no process group.*torchrun"):
        memopt.create("zero1_adamw", model())
