"""Trains a network on small images: ``python -m experiments.vision RUN.yaml OUT_DIR``.

Classifiers report held-out loss, accuracy and F1. The diffusion network reports the loss of its
noise predictions on held-out images at noises and times that are the same for every run; no
image is drawn and no FID is computed. Two tasks on one network: see `experiments.multitask`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments import multitask, networks, schedules, session
from experiments.data import load_images
from experiments.data.images import Images
from experiments.errors import UserError, command_line
from experiments.evaluate import Batch, batches, classification, evaluating, token_weighted_mean
from experiments.spec import RunSpec
from experiments.training import Task
from memopt.step_size import exact_constant

HELD_OUT_DRAWS = 4  # noises and times for each held-out image
DRAWS_SEED = 0
MODELS_MEASURED = 5  # for the exact step; the official code takes as many as there are epochs


class Rows:
    """Images as rows of a data set: ``{"images": (1, side, side), "labels": ()}``."""

    def __init__(self, part: Images, keys: tuple[str, ...]) -> None:
        self.columns = {"images": torch.from_numpy(part.pixels)}
        if "labels" in keys:
            self.columns["labels"] = torch.from_numpy(part.labels)

    def __len__(self) -> int:
        return len(self.columns["images"])

    def __getitem__(self, row: int) -> Batch:
        return {key: column[row] for key, column in self.columns.items()}


def collate(rows: list[Batch]) -> Batch:
    """A batch of rows."""
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def denoising(model: Any, held_out: Callable[[], Iterator[Batch]]) -> dict[str, float]:
    """Mean squared error of the predicted noise over all held-out images and fixed draws."""
    generator = torch.Generator().manual_seed(DRAWS_SEED)
    losses, counts = [], []
    with evaluating(model):
        for batch in held_out():
            images = batch["images"].repeat(HELD_OUT_DRAWS, 1, 1, 1)
            noise = torch.randn(images.shape, generator=generator)
            times = torch.randint(networks.TIMES, (len(images),), generator=generator)
            given = [part.to(model.device) for part in (images, noise, times)]
            losses.append(model(*given).loss.item())
            counts.append(len(images))
    return {"loss": token_weighted_mean(losses, counts)}


def make_task(run: RunSpec, data_dir: Path) -> Task:
    """Network with fresh weights, rows, held-out metrics and the majority baseline."""
    if run.train.sequence_length != 1:
        raise UserError("train.sequence_length: 1 for images, so that 'tokens' counts them")
    parts, labels, manifest = load_images(data_dir)
    model = networks.build(run.model, seed=run.seeds.weights, dtype=run.train.dtype)
    diffusion = isinstance(model, networks.UNet)
    keys = ("images",) if diffusion else ("images", "labels")
    rows = {name: Rows(part, keys) for name, part in parts.items()}
    held_out = partial(batches, rows["validation"], run.train.eval_batch_size, collate)
    task = Task(
        model=model,
        rows=rows["train"],
        collate=collate,
        evaluate=lambda model: classification(model, held_out()),
        uniform_loss=math.log(len(labels)),
        references={"majority_accuracy": manifest["majority_accuracy"]},
        fingerprint=manifest["source"]["fingerprint"],
    )
    if diffusion:
        task.evaluate = lambda model: denoising(model, held_out)
        task.uniform_loss = 1.0  # of predicting no noise at all
        task.references = {}
    if isinstance(model, networks.TwoTasks):
        return multitask.prepare(run, task, model, held_out)
    multitask.refuse(run)
    return measured(run, task)


def measured(run: RunSpec, task: Task) -> Task:
    """The task, with the measured step size and its parts where the schedule is ``exact``."""
    if run.train.schedule.name != "exact":
        return task
    size = run.train.batch_size
    starts = range(0, len(task.rows) - size + 1, size)
    rows = [[task.rows[i] for i in range(start, start + size)] for start in starts]
    if not rows:
        raise UserError(f"train.batch_size: {size} is more than the {len(task.rows)} rows")
    found = exact_constant(
        partial(networks.fresh, run.model),
        _loss,
        [task.collate(batch) for batch in rows],
        run.train.steps,
        num_iters=MODELS_MEASURED,
        seed=run.seeds.weights,
    )
    task.references |= {
        schedules.STEP_SIZE: found.step_size,
        "smoothness": found.smoothness,
        "initial_loss": found.initial_loss,
    }
    return task


def _loss(model: Any, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(**batch).loss
    return loss


if __name__ == "__main__":
    command_line(partial(session.main, "vision", make_task))
