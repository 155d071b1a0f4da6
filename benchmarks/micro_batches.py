"""Time of a whole update, AdamA beside AdamW with gradient accumulation, over micro-batches.

    python benchmarks/micro_batches.py --shape llama_nano --rounds 9

An update is N times forward and backward of a part of the batch, then the optimizer's step. Every
round makes one update of each method for each N, on the same tokens, so that a slow moment of the
machine meets all of them. Reported: the median and the range over rounds of AdamA / AdamW at the
same N in the same round, and of AdamW at N / AdamW at the first N. The clock is the processor time
of this process, which other programs delay but do not lengthen much; they still take its caches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console
from rich.table import Table

import memopt
from memopt.accounting import shapes

METHODS = ("adamw", "adama")
LEARNING_RATE = 1e-3
WARM_UP = 2  # rounds: the first allocates the state


def updater(method: str, shape: str, tokens: torch.Tensor, count: int) -> Callable[[], None]:
    """A function that makes one update of a new model in ``count`` micro-batches."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shapes.named(shape)))
    optimizer = memopt.create(method, model, lr=LEARNING_RATE)

    def update() -> None:
        for part in tokens.chunk(count):
            (model(input_ids=part, labels=part).loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def measure(
    shape: str, batch: int, length: int, counts: list[int], rounds: int
) -> list[dict[str, Any]]:
    """One row an N: the ratios over the rounds."""
    vocabulary = shapes.named(shape)["vocab_size"]
    draw = torch.Generator().manual_seed(1)
    tokens = torch.randint(vocabulary, (batch, length), generator=draw)
    updates = {(m, n): updater(m, shape, tokens, n) for n in counts for m in METHODS}
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in updates}
    for turn in range(rounds + WARM_UP):
        for key, update in updates.items():
            begin = time.process_time()
            update()
            if turn >= WARM_UP:
                seconds[key].append(time.process_time() - begin)
    first = seconds["adamw", counts[0]]
    return [
        {"micro_batches": n}
        | _ratios("adama_to_adamw", seconds["adama", n], seconds["adamw", n])
        | _ratios("adamw_to_first", seconds["adamw", n], first)
        for n in counts
    ]


def _ratios(name: str, mine: list[float], theirs: list[float]) -> dict[str, float]:
    """Median, smallest and largest ratio of the same round."""
    ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
    found = {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)}
    return {f"{name}_{key}": round(value, 3) for key, value in found.items()}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llama_nano", choices=shapes.names())
    parser.add_argument("--batch", type=int, default=16, help="sequences in a batch")
    parser.add_argument("--length", type=int, default=128, help="tokens in a sequence")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    chosen = parser.parse_args()
    counts = chosen.micro_batches
    if uneven := [n for n in counts if n < 1 or chosen.batch % n]:
        parser.error(f"--micro-batches {uneven}: expected divisors of the batch, {chosen.batch}")
    torch.set_num_threads(1)
    before = os.getloadavg()[0]
    rows = measure(chosen.shape, chosen.batch, chosen.length, counts, chosen.rounds)
    table = Table(title=f"time of an update, {chosen.shape}, {chosen.batch} x {chosen.length}")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    if chosen.out:
        facts = {
            **{key: getattr(chosen, key) for key in ("shape", "batch", "length", "rounds")},
            "threads": 1,
            "clock": "processor time of the process",
            "cores": os.cpu_count(),
            "load_average": [before, os.getloadavg()[0]],  # of programs, before and after
            "torch": torch.__version__,
            "rows": rows,
        }
        chosen.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
