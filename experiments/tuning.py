"""Chooses learning rates from sweeps, and keeps the whole sweep beside the choice.

A study with a ``grid`` trains every method at the same number of rates, with the same steps and
seeds, on documents that final runs never see. This command reads its result tables and writes what
a study with ``rates: X`` then reads:

    python -m experiments.tuning results/SUITE/tables --study STUDY --out experiments/tuned/X.yaml
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from experiments import spec
from experiments.errors import UserError, command_line, nearest
from experiments.spec import Name, Strict

if TYPE_CHECKING:
    import pandas as pd

Rate = Annotated[float, Field(gt=0)]


class Trial(Strict):
    """One point of a sweep.

    Attributes:
        lr: peak learning rate.
        loss: held-out loss at the end, mean over seeds; None if one of them diverged.
        run_ids: where it comes from.
    """

    lr: Rate
    loss: float | None = None
    run_ids: Annotated[list[str], Field(min_length=1)]


class TunedMethod(Strict):
    """The rate that was chosen for a method, and the sweep behind it.

    Attributes:
        lr: of the lowest loss.
        at_edge: whether it is the lowest or highest rate tried, so that a better one may lie
            outside.
        sweep: every rate tried, in order.
    """

    lr: Rate
    at_edge: bool
    sweep: list[Trial]


class TunedFile(Strict):
    """``tuned/<name>.yaml``.

    Attributes:
        suite, study, model: where the rates were tuned.
        data_fingerprint, commits: of those runs.
        methods: what was chosen.
    """

    suite: Name
    study: Name
    model: Name
    data_fingerprint: str
    commits: list[str]
    methods: dict[Name, TunedMethod]


def choose(runs: pd.DataFrame, study: str) -> TunedFile:
    """The rate with the lowest held-out loss for each method of a sweep.

    Args:
        runs: ``runs.parquet``.
        study: the study that tuned.

    Raises:
        UserError: no such study, it is not one that tunes, it holds several models or data sets,
            methods had budgets of different size, or every rate of a method diverged.
    """
    known = sorted(set(runs.study))
    if study not in known:
        raise UserError(f"no study {study!r} in the tables{nearest(study, known)}")
    sweep = runs[runs.study == study]
    if not sweep.tuning.all():
        raise UserError(f"study {study!r} has no 'grid': it is not one that tunes")
    for column in ("model", "data_fingerprint", "steps"):
        values = set(sweep[column][~sweep.diverged])
        if len(values) > 1:
            raise UserError(f"study {study!r} has runs of different {column}: {sorted(values)}")
    for name, group in sweep.groupby("method"):
        if group.method_args.nunique() > 1:
            raise UserError(
                f"study {study!r}: {name} ran with different arguments; tune one at a time"
            )
    _equal_budgets(sweep, study)
    first = sweep.iloc[0]
    return TunedFile(
        suite=first.suite,
        study=study,
        model=first.model,
        data_fingerprint=first.data_fingerprint,
        commits=sorted(set(sweep.commit)),
        methods={name: _best(name, group) for name, group in sweep.groupby("method", sort=False)},
    )


def _equal_budgets(sweep: pd.DataFrame, study: str) -> None:
    """Every method has as many rates and as many runs as the others."""
    budgets = sweep.groupby("method").agg(rates=("lr", "nunique"), runs=("run_id", "size"))
    if len(budgets.drop_duplicates()) > 1:
        counted = ", ".join(
            f"{name} {row.rates} rates in {row.runs} runs" for name, row in budgets.iterrows()
        )
        raise UserError(
            f"study {study!r}: methods had unequal budgets ({counted}); let all runs finish, or "
            "give every method the same grid"
        )


def _best(name: str, runs: pd.DataFrame) -> TunedMethod:
    trials = [_trial(lr, group) for lr, group in runs.groupby("lr")]
    finite = [trial for trial in trials if trial.loss is not None]
    if not finite:
        raise UserError(f"{name} diverged at every learning rate of its grid: lower its base rate")
    best = min(finite, key=lambda trial: trial.loss or math.inf)
    return TunedMethod(lr=best.lr, at_edge=best in (trials[0], trials[-1]), sweep=trials)


def _trial(lr: Any, runs: pd.DataFrame) -> Trial:
    finite = not runs.diverged.any() and bool(runs.final_validation_loss.notna().all())
    loss = float(runs.final_validation_loss.mean()) if finite else None
    return Trial(lr=float(lr), loss=loss, run_ids=sorted(runs.run_id))


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.tuning", description=__doc__)
    parser.add_argument("tables", type=Path, help="folder with runs.parquet")
    parser.add_argument("--study", required=True, help="the study that tuned")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.yaml")
    arguments = parser.parse_args()
    from experiments.results import read_tables

    tuned = choose(read_tables(arguments.tables)[0], arguments.study)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(spec.to_yaml(tuned), encoding="utf-8")
    for name, method in tuned.methods.items():
        edge = "  (at the edge of its grid: a better rate may lie outside)" * method.at_edge
        print(f"{name:12} {method.lr:g}{edge}")


if __name__ == "__main__":
    command_line(_main)
