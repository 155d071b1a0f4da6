"""Runs that start from what another run has learnt: found in the suite, and on the disk.

The run that is started from is part of the identity of the one that starts: its identifier holds
the hash of everything that decides its weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator

from experiments import spec
from experiments.errors import UserError, nearest
from experiments.spec import ModelSpec, Name, RunSpec, Strict


class ModelChoice(Strict):
    """A model of a study: a file of ``models``, or what a run of a study above has pretrained.

    Attributes:
        name: of the file; for a ``run``, what tables and the methods' files call it (default: as
            the run's own model).
        run: ``study/model/method/seed``, such as ``convergence/llama_nano/adamw/s0``.
    """

    name: Name | None = None
    run: str | None = None

    @model_validator(mode="after")
    def _a_name_or_a_run(self) -> Self:
        if not self.name and not self.run:
            raise ValueError("a model has a 'name' or is the result of a 'run'")
        return self


def path_of(run: RunSpec) -> str:
    """How people name a run: ``study/model/method/seed``."""
    return f"{run.study}/{run.model.name}/{run.method.name}/{run.seeds.label}"


def find(path: str, above: Iterable[RunSpec], where: str) -> RunSpec:
    """The run whose weights a study starts from.

    Args:
        path: see :func:`path_of`.
        above: runs of the studies above; no others can be meant, so that no circle can arise.
        where: file and study, for the messages.

    Raises:
        UserError: there is no such run above, or several, or it cannot be started from.
    """
    runs = list(above)
    found = [run for run in runs if path_of(run) == path]
    if not found:
        known = nearest(path, {path_of(run) for run in runs})
        raise UserError(
            f"{where}: no run {path!r} in the studies above this one; a study starts from runs of "
            f"studies that stand above it{known}"
        )
    start = found[0]
    if start.tuning:
        raise UserError(
            f"{where}: {path!r} only chooses a learning rate; start from a run of a study without "
            f"'grid'"
        )
    if start.task != "pretrain":
        raise UserError(f"{where}: {path!r} is a {start.task} run; start from a pretrain run")
    if len(found) > 1:
        raise UserError(f"{where}: {path!r} names {len(found)} runs; give them different studies")
    return start


def model_folder(run_dir: Path) -> Path:
    """Where a run's model lies once `experiments.export` has put it there."""
    return run_dir / "model"


def placed(run: RunSpec, runs: Path) -> RunSpec:
    """The run with the folder of its start in place of the start's identifier.

    Args:
        run: comes back as it is where it starts from no run.
        runs: folder of the suite's runs.

    Raises:
        UserError: the start's model is not there, or the folder holds another run.
    """
    if run.model.run is None:
        return run
    start = runs / run.model.run
    folder = model_folder(start)
    if not (folder / "config.json").is_file():
        raise UserError(
            f"model {run.model.name}: {folder} does not hold the model of the run it starts from; "
            f"a workflow puts it there, and so does `python -m experiments.export {start}`"
        )
    there = spec.load(RunSpec, start / "run.yaml").run_id
    if there != run.model.run:
        raise UserError(f"model {run.model.name}: {start} holds the run {there}")
    return run.model_copy(update={"model": ModelSpec(name=run.model.name, path=str(folder))})


def provenance(run: RunSpec, runs: Path) -> dict[str, Any]:
    """``start``: which run the model came from, with the hash of its weights; null for none."""
    if run.model.run is None:
        return {"start": None}
    summary = json.loads((runs / run.model.run / "summary.json").read_text(encoding="utf-8"))
    return {"start": {"run_id": run.model.run, "weights_sha256": summary["weights_sha256"]}}
