"""The table of gradients: where their energy lies, matrix by matrix, while a run trains.

    python -m experiments.gradients results/pretraining/tables/gradients.parquet \
        results/pretraining/spec/runs/methods-llama_nano-adamw-s0-*.yaml --steps 1,10,100,400

Trains each run from its beginning, as `experiments.pretrain` would, and measures at the chosen
updates. Measuring neither draws from the run's random numbers nor changes a tensor:
``weights_sha256`` is that of the unmeasured run. Columns:

- ``run_id`` to ``final_validation_loss`` (`LABELS`): as in ``runs.parquet``, the same on all rows
  of a run.
- ``step``: update, from 1 on; ``tensor``: ``gradient`` (of the whole batch of the update, clipped
  if the run clips) or ``momentum`` (Adam's first moment after the update, where kept in full).
- ``name``, ``layer`` (missing outside repeated blocks), ``kind`` (``q_proj``, ...), ``rows``,
  ``columns``: the weight; ``treated``: whether GWT, GaLore and COAP project it.
- ``energy``: squared Frobenius norm; ``stable_rank``: energy over that of the strongest direction.
- ``choice``: ``band`` (Haar approximation band along ``axis``: ``last``, GWT's, or ``first``),
  ``largest`` (Haar coefficients by size), ``entries`` (entries by size), ``singular`` (best
  directions), ``random`` (random directions of the shorter side).
- ``order``, of a band: ``own``; ``permuted``, in one fixed random order of that axis;
  ``expected``, the mean over all orders.
- ``level`` or ``rank``; ``kept``: numbers kept; ``share``: of the energy, from 0 to 1.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from torch import Tensor, nn

import memopt
from experiments import concentration, memory, models, pretrain, processes, rundir, spec, training
from experiments.data.prepare import prepare
from experiments.errors import UserError, command_line
from experiments.files import canonical_json
from experiments.spec import RunSpec
from experiments.training import Outcome, Task
from memopt import catalog
from memopt.subspaces import as_matrix

LABELS = (
    "run_id", "study", "suite", "smoke", "model", "method", "lr", "seed", "steps", "parameters",
    "commit", "dirty", "config_hash", "data_id", "data_fingerprint", "versions", "machine",
    "weights_sha256", "final_validation_loss",
)  # fmt: skip
TEXT = ("tensor", "name", "kind", "choice", "axis", "order")
COLUMNS = {
    **dict.fromkeys(("step", "layer", "rows", "columns", "level", "rank", "kept"), "Int32"),
    **dict.fromkeys(TEXT, "string"),
    "treated": "bool",
    # seven digits, of which nobody needs more; half the bytes in git
    **dict.fromkeys(("energy", "stable_rank", "share"), "float32"),
}


class Probe:
    """Measures the gradients of a model around its optimizer's steps.

    Attributes:
        rows: of the table, without the run's labels.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, steps: list[int]
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._steps, self._step = set(steps), 0
        groups = memopt.param_groups(model)
        treated = {id(p) for g in groups if g["treated"] for _, p in g["params"]}
        self._weights = [
            (p, {**names_of(name), "treated": id(p) in treated})
            for name, p in model.named_parameters()
            if p.ndim >= 2 and p.requires_grad
        ]
        optimizer.register_step_pre_hook(self._before)
        optimizer.register_step_post_hook(self._after)

    def _before(self, *_: Any) -> None:
        self._step += 1
        self._measure("gradient", lambda weight: weight.grad)

    def _after(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        def moment(weight: Tensor) -> Tensor | None:
            kept = optimizer.state.get(weight, {}).get("exp_avg")
            return kept if isinstance(kept, Tensor) and kept.shape == weight.shape else None

        self._measure("momentum", moment)

    def _measure(self, tensor: str, find: Callable[[Tensor], Tensor | None]) -> None:
        if self._step not in self._steps:
            return
        for weight, labels in self._weights:
            found = find(weight)
            if found is not None:
                self.rows += measured(found, {"step": self._step, "tensor": tensor, **labels})


def names_of(name: str) -> dict[str, Any]:
    """``name``, ``layer`` and ``kind`` of a parameter, such as ``model.layers.3.mlp.up_proj``."""
    block = re.search(r"\.(\d+)\.", name)
    kind = name.removesuffix(".weight").rpartition(".")[2]
    return {"name": name, "layer": int(block[1]) if block else None, "kind": kind}


def measured(tensor: Tensor, labels: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All rows of one tensor, read as a matrix."""
    matrix = as_matrix(tensor.detach()).to("cpu", torch.float64)
    own = {
        **labels,
        "rows": matrix.shape[0],
        "columns": matrix.shape[1],
        "energy": float(matrix.square().sum()),
        "stable_rank": concentration.stable_rank(matrix),
    }
    for row in concentration.shares(matrix):
        yield own | row


def measure(run: RunSpec, data: Path, work: Path, steps: list[int]) -> pd.DataFrame:
    """Trains a run and measures it.

    Args:
        run: of task ``pretrain``.
        data: its prepared data; made where it is not there.
        work: an empty folder for checkpoints and metrics.
        steps: updates at which to measure.

    Raises:
        UserError: not a pretraining run, an update that it does not have, or a method that has
            used up the gradient before its step.
    """
    check(run, steps)
    training.prepare_process(run.threads)
    prepare(run.data, data)
    task = pretrain.make_task(run, data)
    optimizer, _ = training.make_optimizer(run, task.model)
    probe = Probe(task.model, optimizer, steps)
    outcome = training.train(run, task, optimizer, work, None)
    if outcome.diverged:
        raise UserError(f"{run.run_id}: {outcome.verdict}")
    labels = labels_of(run, task, outcome)
    table = pd.DataFrame(probe.rows, columns=list(COLUMNS)).astype(COLUMNS)
    return table.assign(**labels)[[*LABELS, *COLUMNS]]


def labels_of(run: RunSpec, task: Task, outcome: Outcome) -> dict[str, Any]:
    """`LABELS` of a run that has just been trained."""
    return {
        "run_id": run.run_id,
        "study": run.study,
        "suite": run.suite,
        "smoke": run.smoke,
        "model": run.model.name,
        "method": run.method.name,
        "lr": run.method.lr,
        "seed": run.seeds.weights,
        "steps": outcome.steps,
        "parameters": models.parameter_count(task.model),
        **rundir.commit(),
        "config_hash": run.config_hash,
        "data_id": run.data.data_id,
        "data_fingerprint": task.fingerprint,
        "versions": canonical_json(rundir.versions()),
        "machine": canonical_json(rundir.machine()),
        "weights_sha256": models.weights_sha256(task.model),
        "final_validation_loss": outcome.final["validation"]["loss"],
    }


def check(run: RunSpec, steps: list[int]) -> None:
    """Refuses what cannot be measured, see :func:`measure`."""
    where = f"run {run.run_id}"
    if run.task != "pretrain":
        raise UserError(f"{where}: gradients are measured of pretrain runs; this is a {run.task}")
    late = [step for step in steps if not 1 <= step <= run.train.steps]
    if late or not steps:
        raise UserError(
            f"{where}: it has updates 1 to {run.train.steps}; asked for {late or 'none'}"
        )
    timing = catalog.get(run.method.name).timing
    if timing != "step":
        raise UserError(
            f"{where}: {run.method.name} uses gradients during backward ({timing}), so that there "
            "are none at the step; measure a method whose gradients are used at the step"
        )
    if processes.count() > 1:
        raise UserError(f"{where}: gradients are measured in one process; drop torchrun")


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.gradients")
    parser.add_argument("out", type=Path, metavar="OUT.parquet")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN.yaml")
    parser.add_argument("--steps", required=True, help="updates, such as 1,10,100")
    arguments = parser.parse_args()
    try:
        steps = sorted({int(step) for step in arguments.steps.split(",")})
    except ValueError:
        raise UserError(f"--steps {arguments.steps!r}: expected numbers, such as 1,10") from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    runs = [spec.load(RunSpec, path) for path in arguments.runs]
    for run in runs:
        check(run, steps)
    tables = []
    for run in runs:
        with tempfile.TemporaryDirectory() as work:
            data = Path("data/prepared") / run.data.data_id
            tables.append(measure(run, data, Path(work), steps))
    memory.write(pd.concat(tables, ignore_index=True), arguments.out)
    print(
        f"{arguments.out}: {sum(map(len, tables))} rows of {json.dumps([r.run_id for r in runs])}"
    )


if __name__ == "__main__":
    command_line(_main)
