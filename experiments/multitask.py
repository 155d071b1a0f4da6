"""Two tasks on one network: the losses summed, or their conflicts resolved by GCond.

Both ways gather each task's gradient from its own micro-batches and keep the same momentum; the
plain sum only leaves the rules out. The loop is not Trainer's, which knows one loss. It makes no
checkpoints: runs take seconds, and a killed one starts again with the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from experiments import scores, training
from experiments.errors import UserError
from experiments.evaluate import Batch, evaluating
from experiments.networks import TwoTasks
from experiments.order import Order
from experiments.rundir import MetricsFile
from experiments.spec import LossesSpec, RunSpec
from experiments.training import Outcome, Task
from memopt import NonFiniteGradientError
from memopt.gradients import GCond

LOSSES: dict[str, Callable[[TwoTasks, Batch], Tensor]] = {
    "image": lambda model, batch: model.image_loss(batch["images"]),
    "digit": lambda model, batch: functional.cross_entropy(
        model.scores(batch["images"]), batch["labels"]
    ),
}
NO_RULES = {"thresholds": (-1.0, -1.0, -1.0), "storage": "float32"}
WAYS: dict[str, dict[str, Any]] = {
    "sum": NO_RULES,
    "gcond": {},
    "sum_every": {**NO_RULES, "accumulation": "every"},
    "gcond_every": {"accumulation": "every"},
}


def refuse(run: RunSpec) -> None:
    """Says that a network with one loss has nothing to combine.

    Raises:
        UserError: ``train.losses`` is given.
    """
    if run.train.losses:
        raise UserError(f"train.losses: model {run.model.name} has one loss; drop this key")


def prepare(
    run: RunSpec, task: Task, model: TwoTasks, held_out: Callable[[], Iterator[Batch]]
) -> Task:
    """The task with its own loop and evaluation.

    Raises:
        UserError: no ``train.losses``, other tasks, or what this loop cannot do.
    """
    losses = run.train.losses
    if losses is None or set(losses.weights) != set(LOSSES):
        raise UserError(
            f"model {run.model.name}: give train.losses with a weight for each of {sorted(LOSSES)}"
        )
    schedule = run.train.schedule
    if schedule.name != "constant" or schedule.warmup_fraction or run.train.max_grad_norm:
        raise UserError(
            "two tasks train at a constant rate without warm-up or clipping: give "
            "train.schedule: {name: constant, warmup_fraction: 0} and no max_grad_norm"
        )
    task.evaluate = lambda trained: evaluate(trained, losses, held_out())
    task.uniform_loss = losses.weights["image"] + losses.weights["digit"] * task.uniform_loss
    task.loop = loop
    return task


@torch.no_grad()
def evaluate(model: Any, losses: LossesSpec, held_out: Iterator[Batch]) -> dict[str, float]:
    """Weighted loss, pixel error and accuracy over all held-out images."""
    sums, right, rows = dict.fromkeys(LOSSES, 0.0), 0, 0
    with evaluating(model):
        for batch in held_out:
            count = len(batch["labels"])
            for name, loss in LOSSES.items():
                sums[name] += loss(model, batch).item() * count
            right += int((model.scores(batch["images"]).argmax(1) == batch["labels"]).sum())
            rows += count
    return {
        "loss": sum(losses.weights[name] * value for name, value in sums.items()) / rows,
        "accuracy": right / rows,
        "image_error": sums["image"] / rows,
        "digit_loss": sums["digit"] / rows,
    }


def micro_batches(run: RunSpec, task: Task) -> Iterator[Batch]:
    """All micro-batches of the run, in the order of its data seed."""
    size = run.train.batch_size // run.train.micro_batches
    order = Order(task.rows, run.train.steps * run.train.batch_size, run.seeds.data)
    for start in range(0, len(order), size):
        yield task.collate([order[i] for i in range(start, start + size)])


def loop(
    run: RunSpec,
    task: Task,
    optimizer: torch.optim.Optimizer,
    work: Path,
    checkpoint: tuple[Path, int] | None,
    track: str,
) -> Outcome:
    """Trains to the end, or to where the run has to be given up; see `experiments.training.train`.

    ``checkpoint`` is None always, and curves go to no tracker.
    """
    assert run.train.losses
    model, spec = task.model, run.train
    losses, how = run.train.losses.weights, WAYS[run.train.losses.how]
    assert isinstance(model, TwoTasks)
    gcond = GCond(model.parameters(), losses, spec.micro_batches, **how)
    metrics = MetricsFile(work / "metrics.jsonl")
    metrics.truncate(0)
    batches = micro_batches(run, task)
    of_batch = {name: lambda batch, loss=loss: loss(model, batch) for name, loss in LOSSES.items()}
    final: dict[str, float] = {}
    verdict, seconds, conflicts, since = training.FINISHED, 0.0, 0, []
    step = 0
    for step in range(1, spec.steps + 1):
        began = time.perf_counter()
        try:
            report = gcond.step(of_batch, batches)
        except NonFiniteGradientError as error:
            verdict = f"diverged at step {step}: {error}"
            step -= 1
            break
        length = math.hypot(*(float(p.grad.norm()) for p in gcond.params if p.grad is not None))
        optimizer.step()
        optimizer.zero_grad()
        seconds += time.perf_counter() - began
        conflicts += bool(report.conflicts)
        since.append(sum(float(loss) for loss in report.losses.values()))
        row = {"step": step, "tokens": step * training.tokens_per_step(run), "seconds": seconds}
        if step % spec.log_every == 0 or step == spec.steps:
            told = {"loss": sum(since) / len(since), "lr": run.method.lr, "grad_norm": length}
            metrics.append({**row, "split": "train", **told})
            since = []
        if step % spec.eval_every == 0 or step == spec.steps:
            final = task.evaluate(model)
            kept = {"loss": final["loss"], "accuracy": final["accuracy"]}
            metrics.append({**row, "split": "validation", "lr": None, "grad_norm": None, **kept})
            if not final["loss"] <= training.DIVERGED_FACTOR * task.uniform_loss:
                verdict = f"diverged at step {step}: held-out loss {final['loss']:.4g}"
                break
    diverged = verdict != training.FINISHED
    return Outcome(
        steps=step,
        verdict=verdict,
        diverged=diverged,
        final={} if diverged else {scores.MAIN: final | {"conflict_share": conflicts / step}},
        seconds=seconds,
        tokens_per_second=step * training.tokens_per_step(run) / seconds if seconds else None,
        time_shares=None,
    )
