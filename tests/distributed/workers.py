"""What each spawned process runs, and the single-process runs it must equal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

import memopt
from memopt import distributed as exchange

STEPS = 3
ROWS = 2  # of one micro-batch on one process


class Net(nn.Module):
    """Two branches of one shape, either of which a batch may leave out."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.stem, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.branches = nn.ModuleList(nn.Linear(6, 6) for _ in range(2))
        self.double()

    def forward(self, inputs: Tensor, use: tuple[int, ...]) -> Tensor:
        hidden = torch.tanh(self.stem(inputs))
        for index in use:
            hidden = hidden + torch.tanh(self.branches[index](hidden))
        return self.head(hidden).square().mean()


def inputs(step: int, micro_batches: int, processes: int) -> Tensor:
    """(micro-batch, process, row, feature)"""
    draw = torch.Generator().manual_seed(step)
    shape = (micro_batches, processes, ROWS, 4)
    return torch.randn(shape, dtype=torch.float64, generator=draw)


def build(name: str, seed: int, **arguments: Any) -> tuple[Net, torch.optim.Optimizer]:
    model = Net(seed)
    groups = [{"params": list(model.named_parameters())}]
    factory = getattr(memopt, name)
    optimizer = factory(groups, lr=0.05, weight_decay=0.1, **arguments)
    if optimizer.timing is None:
        memopt.accumulate_in_backward(optimizer)
    return model, optimizer


def run(
    model: Net,
    optimizer: torch.optim.Optimizer,
    batches: Callable[[int], list[Tensor]],
    use: tuple[int, ...] = (0, 1),
) -> dict[str, Any]:
    norms = []
    for step in range(STEPS):
        parts = batches(step)
        for part in parts:
            (model(part, use) / len(parts)).backward()
        optimizer.step()
        optimizer.zero_grad()
        norms.append(optimizer.timing.last_grad_norm)
    return {
        "weights": [param.detach() for param in model.parameters()],
        "norms": norms,
        "moments": sum(len(state) > 1 for state in optimizer.state.values()),
    }


# name -> (optimizer, how it exchanges, micro-batches, its arguments)
SCENARIOS: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "adama-states-1": ("AdamA", "reduce_states", 1, {}),
    "adama-states-2": ("AdamA", "reduce_states", 2, {}),
    "adama-gradients-2": ("AdamA", "reduce_gradients", 2, {}),
    "adama-shards-2": ("AdamA", "shard_states", 2, {}),
    "gwt-shards-2": ("GWT", "shard_states", 2, {"level": 1}),
    "galore-gradients-2": ("GaLore", "reduce_gradients", 2, {"rank": 2, "update_interval": 2}),
    "galore-shards-2": ("GaLore", "shard_states", 2, {"rank": 2, "update_interval": 2}),
    "coap-shards-2": ("COAP", "shard_states", 2, {"rank": 2, "update_interval": 2}),
    "lomo-gradients-1": ("LOMO", "reduce_gradients", 1, {}),
    "lomo-gradients-2": ("LOMO", "reduce_gradients", 2, {"micro_batches": 2}),
    "adalomo-gradients-1": ("AdaLomo", "reduce_gradients", 1, {}),
}


def alone(scenario: str, processes: int) -> dict[str, Any]:
    """The single process that ``scenario`` on ``processes`` must equal."""
    name, how, micro_batches, arguments = SCENARIOS[scenario]
    model, optimizer = build(name, seed=0, **arguments)

    def batches(step: int) -> list[Tensor]:
        data = inputs(step, micro_batches, processes)
        if how == "reduce_states":  # N M micro-batches
            return list(data.flatten(0, 1))
        return list(data.flatten(1, 2))  # N micro-batches, M times as large

    return run(model, optimizer, batches)


def branches_apart(rank: int, how: str) -> dict[str, Any] | str:
    """Each process uses a branch of its own: (0) on the first, (1) on the others."""
    model, optimizer = build("AdamA", seed=rank)
    getattr(exchange, how)(optimizer)
    use = (0,) if rank == 0 else (1,)
    size = distributed.get_world_size()
    try:
        return run(model, optimizer, lambda step: [inputs(step, 1, size)[0, rank]], use)
    except memopt.errors.MiniBatchError as error:
        return str(error)


def worker(rank: int, processes: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes
    )
    results: dict[str, Any] = {}
    for scenario, (name, how, micro_batches, arguments) in SCENARIOS.items():
        model, optimizer = build(name, seed=rank, **arguments)  # weights of process 0 must win
        getattr(exchange, how)(optimizer)

        def batches(step: int, micro_batches: int = micro_batches) -> list[Tensor]:
            return list(inputs(step, micro_batches, processes)[:, rank])

        results[scenario] = run(model, optimizer, batches)
    results["apart-states"] = branches_apart(rank, "reduce_states")
    results["apart-gradients"] = branches_apart(rank, "reduce_gradients")
    torch.save(results, Path(folder) / f"{rank}.pt")
    distributed.destroy_process_group()
