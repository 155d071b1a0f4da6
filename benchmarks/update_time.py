"""Time of a whole update of every method of a study beside AdamW's, interleaved in one process.

    python benchmarks/update_time.py --study methods --study wider --rounds 200

An update is what the study's runs do: forward and backward of each micro-batch, then the step of
the optimizer, with the study's settings. Every round makes the next update of every run with the
study's first seeds, on the same random tokens and in an order that is drawn anew, so that a slow
moment of the machine, or what the run before left in its caches, meets all of them. The first
updates count: they make states and bases, and so does each refresh of a basis, as often as in
training. Reported: a method's time over all rounds / AdamW's of the same model, and the smallest
and largest such ratio of `BLOCKS` equal parts of the rounds (a refresh that comes once is in one of
them). The clock is the processor time of this process, which other programs delay but do not
lengthen much; they still take its caches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from experiments import models, suites, training
from experiments.errors import UserError, command_line
from experiments.spec import RunSpec

BLOCKS = 5
REFERENCE = "adamw"


def chosen(suite: str, studies: list[str]) -> list[RunSpec]:
    """The runs of the studies with the seeds of the study's first run.

    Raises:
        UserError: a study that the suite has not, that pretrains nothing, or is without AdamW.
    """
    runs = suites.expand(suite)
    found = []
    for study in studies:
        mine = [run for run in runs if run.study == study and run.task == "pretrain"]
        if not mine:
            known = sorted({run.study for run in runs if run.task == "pretrain"})
            raise UserError(f"--study {study}: suite {suite} pretrains in {', '.join(known)}")
        mine = [run for run in mine if run.seeds == mine[0].seeds]
        for model in {run.model.name for run in mine}:
            if all(r.method.name != REFERENCE for r in mine if r.model.name == model):
                raise UserError(f"--study {study}: no run of {REFERENCE} with {model}")
        found += mine
    return found


def updater(run: RunSpec) -> Callable[[], None]:
    """A function that makes the next update of a run's model, on tokens of no meaning."""
    vocabulary = run.model.shape["vocab_size"]
    model = models.language_model(
        run.model, seed=run.seeds.weights, dtype=run.train.dtype, largest_id=vocabulary - 1
    )
    optimizer, _ = training.make_optimizer(run, model)
    draw = torch.Generator().manual_seed(1)
    rows = run.train.batch_size, run.data.sequence_length
    tokens = torch.randint(vocabulary, rows, generator=draw)
    count = run.train.micro_batches

    def update() -> None:
        for part in tokens.chunk(count):
            (model(input_ids=part, labels=part).loss / count).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def measure(runs: list[RunSpec], rounds: int) -> list[dict[str, Any]]:
    """One row a run: its time over that of AdamW with the same study and model."""
    updates = {run.run_id: updater(run) for run in runs}
    seconds = {run_id: torch.zeros(rounds, dtype=torch.float64) for run_id in updates}
    updater(runs[0])()  # what torch sets up once is nobody's
    order = random.Random(0)
    for turn in track(range(rounds), "rounds"):
        for run_id in order.sample(list(updates), len(updates)):
            begin = time.process_time()
            updates[run_id]()
            seconds[run_id][turn] = time.process_time() - begin
    base = {(r.study, r.model.name): r.run_id for r in runs if r.method.name == REFERENCE}
    rows = []
    for run in runs:
        mine, theirs = seconds[run.run_id], seconds[base[run.study, run.model.name]]
        parts = (mine.reshape(BLOCKS, -1).sum(1) / theirs.reshape(BLOCKS, -1).sum(1)).tolist()
        ratios = {"ratio": float(mine.sum() / theirs.sum()), "min": min(parts), "max": max(parts)}
        names = {"run_id": run.run_id, "study": run.study, "model": run.model.name}
        names["method"] = run.method.name
        rows.append(names | {key: round(value, 4) for key, value in ratios.items()})
    return rows


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--suite", default="pretraining")
    parser.add_argument("--study", action="append", help="may be given more than once")
    parser.add_argument("--rounds", type=int, default=200, help=f"a multiple of {BLOCKS}")
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    asked = parser.parse_args()
    if asked.rounds < BLOCKS or asked.rounds % BLOCKS:
        parser.error(f"--rounds {asked.rounds}: expected a multiple of {BLOCKS}")
    studies = asked.study or ["methods"]
    training.prepare_process(threads=1)
    before = os.getloadavg()[0]
    rows = measure(chosen(asked.suite, studies), asked.rounds)
    table = Table(title=f"time of an update / {REFERENCE}'s, suite {asked.suite}")
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    if asked.out:
        facts = {
            **{"suite": asked.suite, "studies": studies, "rounds": asked.rounds, "blocks": BLOCKS},
            "threads": 1,
            "clock": "processor time of the process",
            "cores": os.cpu_count(),
            "load_average": [before, os.getloadavg()[0]],  # of programs, before and after
            "torch": torch.__version__,
            "rows": rows,
        }
        asked.out.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    command_line(main)
