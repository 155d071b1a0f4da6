"""How much larger AdamA's steps are than Adam's, measured while an ordinary run trains.

    python -m experiments.micro_batches results/pretraining/tables/micro_batches.parquet \
        results/pretraining/spec/runs/ablation_adama_1-llama_nano-adamw-s0-*.yaml

Trains each run from its beginning, as `experiments.pretrain` would. Before each update the gradient
of every row of its batch is taken once more; their sums over consecutive rows are the gradients
``g_i`` of the N micro-batches into which the same batch can be split (of the loss divided by N).
Adam's second moment takes ``(sum_i g_i)^2``, AdamA's ``sum_i g_i^2``; the first moments are equal,
so AdamA's step is ``sqrt(v_Adam / v_AdamA)`` times Adam's. Nothing of this touches the training:
``weights_sha256`` is that of the unmeasured run.

What the ratio should be follows from the gradient's signal-to-noise ratio rho:
`experiments.step_ratio` has the formula.

Columns:

- ``run_id`` to ``final_validation_loss``: as in ``runs.parquet``, the same on all rows of a run;
  ``batch_size``: B.
- ``step``: number of updates done with this one; ``over``: ``moments``, the second moments as the
  optimizer keeps them (decayed, from the first update), or ``window``, the plain sum since the
  last measured update.
- ``name``, ``kind`` (``embedding``, ``attention``, ``mlp``, ``norm``, ``head``), ``elements``: the
  tensor; where ``name`` is missing, all tensors of the kind, or (``all``) of the model.
- ``micro_batches``: N.
- ``ratio``: ``sqrt(sum v_Adam / sum v_AdamA)``, sums over the weights of the row.
- ``snr``: rho of these weights, from the batch's gradient and those of its rows.
- ``ratio_even``, ``snr_odd``, ``predicted``: the ratio from updates of even number alone, rho from
  those of odd number alone, and the formula at the latter. Batches of the two have no row in
  common, so that agreement is no identity. Missing where there is no such update yet.
- ``q05``, ``q25``, ``q50``, ``q75``, ``q95``: of the single weights' step ratios, eps included,
  ``(sqrt(vhat_Adam) + eps) / (sqrt(vhat_AdamA) + eps)``; for ``moments`` only.
- ``split_error``: largest relative distance so far of the rows' sum to the run's own gradient.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import transformers
from torch import Tensor

from experiments import memory, pretrain, processes, spec, training
from experiments.data.prepare import prepare
from experiments.errors import UserError, command_line
from experiments.gradients import labels_of
from experiments.order import Order
from experiments.spec import RunSpec
from experiments.step_ratio import signal_to_noise, step_ratio
from experiments.training import Task

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
KINDS = {  # of a Llama's parameters, by a part of their names
    "embed_tokens": "embedding", "lm_head": "head", "norm": "norm", "self_attn": "attention",
    "mlp": "mlp",
}  # fmt: skip
ODD, EVEN = 1, 0
SHARES = (1 / 40, 1 / 10, 1 / 4, 1 / 2, 1)  # of a run, after which to measure


def micro_squares(rows: Iterable[Tensor], batch: int, counts: list[int]) -> dict[int, Tensor]:
    """``sum_i g_i^2`` of one batch for each N, elementwise.

    Args:
        rows: gradient of the mean loss of each row, in the order of the batch.
        batch: number of rows; a multiple of each count.
        counts: the N.
    """
    sums: dict[int, Tensor] = {}
    parts: dict[int, Tensor] = {}
    for place, gradient in enumerate(rows, start=1):
        share = gradient / batch
        for count in counts:
            parts[count] = parts[count] + share if count in parts else share
            if place % (batch // count) == 0:
                square = parts.pop(count).square()
                sums[count] = sums[count] + square if count in sums else square
    return sums


class Probe:
    """Follows AdamA's second moments for several N along the run of another optimizer.

    Attributes:
        rows: of the table, without the run's labels.
    """

    def __init__(
        self,
        run: RunSpec,
        task: Task,
        optimizer: torch.optim.Optimizer,
        counts: list[int],
        steps: list[int],
    ) -> None:
        self.rows: list[dict[str, Any]] = []
        self._task, self._batch = task, run.train.batch_size
        self._order = Order(task.rows, run.train.steps * self._batch, run.seeds.data)
        self._weights = dict(task.model.named_parameters())
        self._groups = groups(self._weights)
        self._counts = sorted({1, *counts, self._batch})  # the rows tell the noise
        self._shown, self._steps = set(counts), set(steps)
        self._beta2, self._eps = optimizer.param_groups[0]["betas"][1], optimizer.defaults["eps"]
        self._step, self._error = 0, 0.0
        zero = {n: sum(p.numel() for p in self._weights.values()) for n in self._counts}
        self._sums = {
            over: {half: {n: torch.zeros(size) for n, size in zero.items()} for half in (ODD, EVEN)}
            for over in ("moments", "window")
        }
        optimizer.register_step_pre_hook(self._before)

    def _before(self, *_: Any) -> None:
        self._step += 1
        squares = micro_squares(self._gradients(), self._batch, self._counts)
        half = self._step % 2
        for both in self._sums["moments"].values():
            for kept in both.values():
                kept.mul_(self._beta2)
        for count, square in squares.items():
            self._sums["moments"][half][count].add_(square, alpha=1 - self._beta2)
            self._sums["window"][half][count].add_(square)
        if self._step in self._steps:
            for over in self._sums:
                self.rows += self._measured(over)
            for both in self._sums["window"].values():
                for kept in both.values():
                    kept.zero_()

    def _gradients(self) -> Iterator[Tensor]:
        """Gradient of each row of this update, all weights in one vector; checks their sum."""
        whole: Tensor | None = None
        for place in range((self._step - 1) * self._batch, self._step * self._batch):
            with torch.enable_grad():
                loss = self._task.model(**self._task.collate([self._order[place]])).loss
                found = torch.autograd.grad(loss, list(self._weights.values()))
            gradient = torch.cat([part.flatten() for part in found])
            whole = gradient if whole is None else whole + gradient
            yield gradient
        own = torch.cat([p.grad.flatten() for p in self._weights.values() if p.grad is not None])
        assert whole is not None  # a batch has rows
        self._error = max(self._error, float((whole / self._batch - own).norm() / own.norm()))

    def _measured(self, over: str) -> Iterator[dict[str, Any]]:
        halves = self._sums[over]
        sums = {n: halves[ODD][n] + halves[EVEN][n] for n in self._counts}
        for labels, parts in self._groups:
            total, odd, even = (
                {n: sum(float(v[n][part].double().sum()) for part in parts) for n in self._counts}
                for v in (sums, halves[ODD], halves[EVEN])
            )
            snr, snr_odd = (
                float(signal_to_noise(v[1], v[self._batch], self._batch)) for v in (total, odd)
            )
            for count in sorted(self._shown):
                yield {
                    "step": self._step,
                    "over": over,
                    **labels,
                    "micro_batches": count,
                    "ratio": _root(total[1], total[count]),
                    "snr": snr,
                    "ratio_even": _root(even[1], even[count]),
                    "snr_odd": snr_odd,
                    "predicted": float(step_ratio(snr_odd, count)),
                    "split_error": self._error,
                    **(self._spread(sums, parts, count) if over == "moments" else {}),
                }

    def _spread(self, sums: dict[int, Tensor], parts: list[slice], count: int) -> dict[str, float]:
        """Quantiles of single weights' step ratios."""
        seen = 1 - self._beta2**self._step
        adam, adama = (
            (torch.cat([sums[n][part] for part in parts]).double() / seen).sqrt() + self._eps
            for n in (1, count)
        )
        found = np.quantile((adam / adama).numpy(), QUANTILES)
        return {
            f"q{100 * q:02.0f}": float(value) for q, value in zip(QUANTILES, found, strict=True)
        }


def groups(weights: dict[str, Tensor]) -> list[tuple[dict[str, Any], list[slice]]]:
    """Each tensor, each kind and all: labels, and places in the vector of all weights in a row."""
    tensors: list[tuple[str, str, slice]] = []
    start = 0
    for name, weight in weights.items():
        tensors.append((name, kind(name), slice(start, start + weight.numel())))
        start += weight.numel()
    found: list[tuple[dict[str, Any], list[slice]]] = [
        ({"name": name, "kind": of}, [part]) for name, of, part in tensors
    ]
    for wanted in dict.fromkeys(of for _, of, _ in tensors):
        parts = [part for _, of, part in tensors if of == wanted]
        found.append(({"name": None, "kind": wanted}, parts))
    found.append(({"name": None, "kind": "all"}, [slice(0, start)]))
    return [
        (labels | {"elements": sum(part.stop - part.start for part in parts)}, parts)
        for labels, parts in found
    ]


def _root(adam: float, adama: float) -> float:
    return float(np.sqrt(adam / adama)) if adama > 0 else float("nan")


def kind(name: str) -> str:
    """Of a parameter, one of `KINDS`; ``other`` where it is none of them."""
    return next((kind for part, kind in KINDS.items() if part in name), "other")


def measure(
    run: RunSpec, data: Path, work: Path, counts: list[int], steps: list[int]
) -> pd.DataFrame:
    """Trains a run and measures it.

    Args:
        run: see :func:`check`.
        data: its prepared data; made where it is not there.
        work: an empty folder for checkpoints and metrics.
        counts: the N.
        steps: updates at which to measure.

    Raises:
        UserError: what :func:`check` refuses, or a run that diverged.
    """
    check(run, counts, steps)
    training.prepare_process(run.threads)
    prepare(run.data, data)
    task = pretrain.make_task(run, data)
    optimizer, _ = training.make_optimizer(run, task.model)
    probe = Probe(run, task, optimizer, counts, steps)
    outcome = training.train(run, task, optimizer, work, None)
    if outcome.diverged:
        raise UserError(f"{run.run_id}: {outcome.verdict}")
    labels = labels_of(run, task, outcome) | {"batch_size": run.train.batch_size}
    return pd.DataFrame([labels | row for row in probe.rows])


def check(run: RunSpec, counts: list[int], steps: list[int]) -> None:
    """Refuses what cannot be measured.

    Raises:
        UserError: not a pretraining run in float32 by AdamW without clipping in one process;
            numbers of micro-batches that do not divide its batch; updates that it does not have.
    """
    where, train = f"run {run.run_id}", run.train
    wanted = {
        "task": (run.task, "pretrain"),
        "method": (run.method.name, "adamw"),
        "train.dtype": (train.dtype, "float32"),
        "train.max_grad_norm": (train.max_grad_norm, 0),
        "processes": (processes.count(), 1),
    }
    for key, (found, expected) in wanted.items():
        if found != expected:
            raise UserError(f"{where}: {key} is {found}; only {expected} can be measured")
    uneven = [count for count in counts if count < 1 or train.batch_size % count]
    if uneven or not counts:
        raise UserError(
            f"{where}: --micro-batches {uneven or 'none'}: expected divisors of the batch of "
            f"{train.batch_size} rows"
        )
    late = [step for step in steps if not 1 <= step <= train.steps]
    if late or not steps:
        raise UserError(f"{where}: --steps {late or 'none'}: it has updates 1 to {train.steps}")


def chosen(run: RunSpec, counts: str | None, steps: str | None) -> tuple[list[int], list[int]]:
    """The N and the updates that the options name.

    Where they name none: all powers of two that divide the batch; the second update and shares of
    the run, more of them early, where the ratio changes fast.
    """
    batch, last = run.train.batch_size, run.train.steps
    powers = [2**n for n in range(batch.bit_length()) if batch % 2**n == 0]
    shares = {min(2, last), *(max(1, round(share * last)) for share in SHARES)}
    return (
        _numbers("--micro-batches", counts) if counts else powers,
        _numbers("--steps", steps) if steps else sorted(shares),
    )


def _numbers(option: str, text: str) -> list[int]:
    try:
        return sorted({int(number) for number in text.split(",")})
    except ValueError:
        raise UserError(f"{option} {text!r}: expected whole numbers, such as 1,2,4") from None


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.micro_batches")
    parser.add_argument("out", type=Path, metavar="OUT.parquet")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN.yaml")
    parser.add_argument("--micro-batches", help="the N; default: powers of two up to the batch")
    parser.add_argument("--steps", help="updates, such as 2,40,400; default: six over the run")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    runs = [spec.load(RunSpec, path) for path in arguments.runs]
    asked = [chosen(run, arguments.micro_batches, arguments.steps) for run in runs]
    for run, (counts, steps) in zip(runs, asked, strict=True):
        check(run, counts, steps)
    tables = []
    for run, (counts, steps) in zip(runs, asked, strict=True):
        with tempfile.TemporaryDirectory() as work:
            data = Path("data/prepared") / run.data.data_id
            tables.append(measure(run, data, Path(work), counts, steps))
    table = pd.concat(tables, ignore_index=True)
    memory.write(table, arguments.out)
    print(f"{arguments.out}: {len(table)} rows of {', '.join(run.run_id for run in runs)}")


if __name__ == "__main__":
    command_line(_main)
