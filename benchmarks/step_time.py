"""Time of one optimizer step beside torch's fused AdamW, interleaved in one process.

    python benchmarks/step_time.py --shape llama_60m --rounds 5

Every round times one step of every method once, on the same gradients, so that a slow moment of
the machine meets all of them. Reported: the median over rounds of (method / AdamW fused) in the
same round, its range, and state bytes per weight. Times themselves are not reported: they belong
to one machine, ratios less so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import memopt
from memopt.accounting import shapes

# settings of the papers' C4 runs of this size where they exist
LEARNING_RATE = 1e-3
METHODS: dict[str, dict[str, Any]] = {
    "adamw": {},
    "gwt": {"level": 2},
    "gwt db2": {"level": 2, "wavelet": "db2"},
    "coap": {"rank": 128, "update_interval": 40},
    "galore": {"rank": 128, "update_interval": 200},
    "adama": {},
    "adalomo": {},
    "lomo": {},
}


def build(shape: str) -> nn.Module:
    """The model of a named shape with random float32 weights."""
    torch.manual_seed(0)
    model = shapes.skeleton(shapes.named(shape)).to_empty(device="cpu")
    for param in model.parameters():
        nn.init.normal_(param, std=0.02)
    return model


def own(name: str, model: nn.Module) -> torch.optim.Optimizer:
    """A method of the catalog, as `METHODS` sets it; its arithmetic alone, without hooks."""
    arguments = dict(METHODS[name], lr=LEARNING_RATE)
    if name == "adamw":
        arguments["fused"] = True
    optimizer = memopt.create(name.partition(" ")[0], model, **arguments)
    if (timing := getattr(optimizer, "timing", None)) is not None:
        timing.remove()  # steps on gradients that already exist
    return optimizer


def galore_torch(model: nn.Module) -> torch.optim.Optimizer:
    """The authors' GaLore with the same settings."""
    from galore_torch import GaLoreAdamW

    treated, plain = memopt.param_groups(model)
    arguments = METHODS["galore"]
    group = {
        "params": [p for _, p in treated["params"]],
        "rank": arguments["rank"],
        "update_proj_gap": arguments["update_interval"],
        "scale": 0.25,
        "proj_type": "std",
    }
    rest = {"params": [p for _, p in plain["params"]]}
    return GaLoreAdamW([rest, group], lr=LEARNING_RATE, no_deprecation_warning=True)


def transformers_adafactor(model: nn.Module) -> torch.optim.Optimizer:
    """Adafactor as AdaLomo computes it."""
    from transformers.optimization import Adafactor

    return Adafactor(model.parameters(), lr=LEARNING_RATE, relative_step=False)


PEERS = {"galore-torch": galore_torch, "transformers Adafactor": transformers_adafactor}


def stepper(name: str, shape: str) -> tuple[Callable[[], None], nn.Module, torch.optim.Optimizer]:
    """A function that makes one step on fixed gradients, the model and the optimizer."""
    model = build(shape)
    optimizer = PEERS[name](model) if name in PEERS else own(name, model)
    draw = torch.Generator().manual_seed(1)
    grads = [torch.randn(p.shape, generator=draw) * 1e-3 for p in model.parameters()]

    def step() -> None:
        for param, grad in zip(model.parameters(), grads, strict=True):
            param.grad = grad
        optimizer.step()

    return step, model, optimizer


def measure(shape: str, rounds: int, threads: int, peers: list[str]) -> list[dict[str, Any]]:
    """One row a method: ratio to fused AdamW over the rounds, and bytes of state per weight.

    Methods are built one after another and kept, so the machine must hold them all. Projection
    refreshes are measured apart: the first step of a projected method is one.
    """
    torch.set_num_threads(threads)
    built = {name: stepper(name, shape) for name in [*METHODS, *peers]}
    seconds: dict[str, list[float]] = {name: [] for name in built}
    first: dict[str, float] = {}
    for turn in range(rounds + 2):  # turn 0 allocates and refreshes, turn 1 warms up
        for name, (step, _, _) in built.items():
            begin = time.perf_counter()
            step()
            spent = time.perf_counter() - begin
            if turn == 0:
                first[name] = spent
            elif turn > 1:
                seconds[name].append(spent)
    base = seconds["adamw"]
    rows = []
    for name, (_, model, optimizer) in built.items():
        ratios = [mine / theirs for mine, theirs in zip(seconds[name], base, strict=True)]
        kept = state_bytes(optimizer)
        weights = sum(p.numel() for p in model.parameters())
        rows.append(
            {
                "method": name,
                "arguments": METHODS.get(name, {}),
                "ratio_median": round(statistics.median(ratios), 2),
                "ratio_min": round(min(ratios), 2),
                "ratio_max": round(max(ratios), 2),
                "first_step_ratio": round(first[name] / statistics.median(base), 1),
                "state_bytes_per_weight": round(kept / weights, 3),
            }
        )
    return rows


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all tensors in the state, those inside projector objects included."""
    total = 0
    for state in optimizer.state.values():
        for value in state.values():
            held = vars(value).values() if hasattr(value, "__dict__") else [value]
            tensors = [value] if isinstance(value, torch.Tensor) else held
            total += sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor))
    return total


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llama_60m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peers", nargs="*", default=[], choices=list(PEERS))
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    chosen = parser.parse_args()
    rows = measure(chosen.shape, chosen.rounds, chosen.threads, chosen.peers)
    table = Table(title=f"step time / AdamW fused, {chosen.shape}, {chosen.threads} threads")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    if chosen.out:
        settings = {"shape": chosen.shape, "rounds": chosen.rounds, "threads": chosen.threads}
        facts = {**settings, "torch": torch.__version__, "rows": rows}
        chosen.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
