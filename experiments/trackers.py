"""Trackers: where a run's curves can be watched while it trains. They never change a run."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from transformers import TrainerCallback
from transformers.integrations import INTEGRATION_TO_CALLBACK, TensorBoardCallback

from experiments import processes
from experiments.errors import UserError, nearest

NONE, TENSORBOARD = "none", "tensorboard"


def check(track: str) -> None:
    """Refuses a tracker that is unknown or not installed, before anything starts.

    Raises:
        UserError: with the nearest name, or with what to install.
    """
    if track == NONE:
        return
    if track not in INTEGRATION_TO_CALLBACK:
        known = [NONE, *INTEGRATION_TO_CALLBACK]
        raise UserError(f"--track: unknown tracker {track!r}{nearest(track, known)}")
    package = "tensorboardX" if track == TENSORBOARD else track
    if track in (TENSORBOARD, "wandb", "mlflow") and find_spec(package) is None:
        raise UserError(f"--track {track}: pip install {package}, or give --track none")


def callbacks(track: str, run_id: str, work: Path, done: int) -> list[TrainerCallback]:
    """Trainer's callback of a tracker.

    Args:
        track: name.
        run_id: folder of the curves.
        work: the run's folder; TensorBoard's files go to ``tensorboard/`` beside its parent.
        done: updates of earlier sessions; TensorBoard drops what a killed one wrote beyond them.
    """
    if track == NONE or not processes.first():
        return []
    if track != TENSORBOARD:
        return [INTEGRATION_TO_CALLBACK[track]()]
    from tensorboardX import SummaryWriter

    folder = work.absolute().parent.parent / TENSORBOARD / run_id
    return [TensorBoardCallback(SummaryWriter(str(folder), purge_step=done + 1))]
