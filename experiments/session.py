"""From ``RUN.yaml`` to a run folder: what all training commands do around the loop."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from transformers import PreTrainedModel

import memopt
from experiments import (
    checkpoints,
    models,
    processes,
    rundir,
    scores,
    sharded,
    spec,
    starts,
    trackers,
    training,
)
from experiments.data.prepare import prepare
from experiments.errors import UserError
from experiments.rundir import MetricsFile
from experiments.spec import RunSpec
from experiments.training import Outcome, Task
from memopt import accounting


def main(kind: str, make_task: Callable[[RunSpec, Path], Task]) -> None:
    """The command line of one task.

    Args:
        kind: ``task`` of the runs that the command trains.
        make_task: builds model, rows and evaluation from a run and its prepared data.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m experiments.{kind}",
        description=f"Runs one {kind} run; interrupted, the same command goes on where it was.",
    )
    parser.add_argument("run", type=Path, metavar="RUN.yaml")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR", help="gets the four result files")
    parser.add_argument("--data", type=Path, help="prepared data; default data/prepared/<data_id>")
    parser.add_argument(
        "--work", type=Path, help="checkpoints; default OUT_DIR/../../work/<run_id>"
    )
    parser.add_argument(
        "--track",
        default=trackers.TENSORBOARD,
        metavar="NAME",
        help="where curves go while training: tensorboard (default, into WORK/../../tensorboard/), "
        "none, or another that transformers knows, such as wandb",
    )
    arguments = parser.parse_args()
    trackers.check(arguments.track)
    run = spec.load(RunSpec, arguments.run)
    if run.task != kind:
        raise UserError(
            f"{arguments.run}: this is a {run.task} run: python -m experiments.{run.task}"
        )
    out_dir = arguments.out_dir.absolute()
    work = arguments.work or out_dir.parent.parent / "work" / run.run_id
    data = arguments.data or Path("data/prepared") / run.data.data_id
    with (
        rundir.locked(work) if processes.first() else contextlib.nullcontext(),
        processes.together(cpu=run.resources.gpus == 0),
    ):
        if not processes.from_first(processes.first() and rundir.finished(out_dir, run)):
            execute(run, out_dir, data, work, make_task, arguments.track)
        elif processes.first():
            print(f"{run.run_id} is already finished in {out_dir}", file=sys.stderr)
        if processes.first():
            rundir.clear(work)


def execute(
    run: RunSpec,
    out_dir: Path,
    data: Path,
    work: Path,
    make_task: Callable[[RunSpec, Path], Task],
    track: str = trackers.NONE,
) -> None:
    """Prepares, trains or resumes, and writes the four files."""
    training.prepare_process(run.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    if processes.first():
        prepare(run.data, data)  # nothing to do where it is there; refuses another run's data
    processes.wait()
    task = make_task(starts.placed(run, out_dir.parent), data)
    optimizer, predicted = training.make_optimizer(run, task.model)
    kept = predicted.weights + predicted.states + predicted.projections
    rundir.require_space(work, (checkpoints.KEPT + 1) * kept)
    newest = checkpoints.newest(work / "checkpoints") if processes.first() else None
    checkpoint = processes.from_first(newest)
    started = checkpoint[1] if checkpoint else 0
    sessions = rundir.begin_session(work, started) if processes.first() else []
    outcome = (task.loop or training.train)(run, task, optimizer, work, checkpoint, track)
    metrics = MetricsFile(work / "metrics.jsonl")
    # counts adapters, if there are any
    results = summary(run, task, optimizer, outcome, predicted, metrics)
    more = task.files(task.model)
    weights = sharded.whole_weights(task.model) if sharded.is_divided(task.model) else None
    if not processes.first():
        return
    memopt.merge_adapters(task.model).save_pretrained(work / "model", state_dict=weights)
    rundir.write_outputs(
        out_dir,
        run,
        metrics,
        results,
        rundir.provenance(run, task.fingerprint, sessions) | starts.provenance(run, out_dir.parent),
        more,
    )
    print(f"{run.run_id}: {outcome.verdict}; {json.dumps(results['final'])}", file=sys.stderr)


def summary(
    run: RunSpec,
    task: Task,
    optimizer: torch.optim.Optimizer,
    outcome: Outcome,
    predicted: accounting.Report,
    metrics: MetricsFile,
) -> dict[str, Any]:
    """The content of ``summary.json``; measured bytes are those of the first process."""
    sharded.settle(task.model)
    measured = accounting.measure(task.model, optimizer)
    held_out = scores.summary(run.score, metrics.rows(), outcome.final)
    rows = outcome.steps * run.train.batch_size
    return {
        "run_id": run.run_id,
        "study": run.study,
        "suite": run.suite,
        "smoke": run.smoke,
        "tuning": run.tuning,
        "task": run.task,
        "model": run.model.name,
        "data_id": run.data.data_id,
        "method": run.method.name,
        "method_args": run.method.args,
        "lr": run.method.lr,
        "seeds": run.seeds.model_dump(),
        "parameters": models.parameter_count(task.model),
        "steps": outcome.steps,
        "tokens": outcome.steps * training.tokens_per_step(run),
        "epochs": rows / len(task.rows),
        "micro_batches": run.train.micro_batches,
        "counts": task.counts,
        **held_out,
        "final": {**held_out["final"], **task.references},
        "state_bytes": {
            "measured": measured.states + measured.projections,
            "predicted": predicted.states + predicted.projections,
        },
        "weights_bytes": measured.weights,
        "weights_sha256": models.weights_sha256(task.model),
        "peak_rss_bytes": rundir.peak_rss_bytes(),
        "peak_method": rundir.PEAK_METHOD,
        "tokens_per_second": outcome.tokens_per_second,
        "time_shares": outcome.time_shares,
        "seconds": outcome.seconds,
        "diverged": outcome.diverged,
        "verdict": outcome.verdict,
        "optimizer": described(optimizer, task.model),
    }


def described(optimizer: torch.optim.Optimizer, model: PreTrainedModel) -> dict[str, Any]:
    """Which optimizer really ran, and how much of the model its algorithm treated."""
    if hasattr(optimizer, "treated_parameters"):
        treated = [parameter for _, parameter in optimizer.treated_parameters()]
    else:  # torch's own treat every parameter alike
        treated = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kind = type(optimizer)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "treated_parameters": len(treated),
        "treated_elements": sum(parameter.numel() for parameter in treated),
    }
