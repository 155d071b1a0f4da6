"""Trains the run of one table row again and compares every number with the row, bit for bit.

    python -m experiments.rerun smoke convergence-llama_nano-gwt-s0-84b28e08

The row holds the complete configuration (`experiments.tables`). The same versions on the same kind
of machine promise the same bits; where numbers differ, what else differs is told beside them.
Speeds and the peak of memory are no part of the comparison. Exit status 1: some numbers differ.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import results, spec, tables
from experiments.errors import UserError, command_line, nearest
from experiments.files import write_atomic
from experiments.spec import RunSpec

# Of the row: names, what depends on the day, and what is told beside differences.
NOT_COMPARED = {
    *tables.SPEEDS,
    *results.PROVENANCE,
    "run_id",
    "study",
    "suite",
    "smoke",
    "tuning",
    "peak_rss_bytes",
    "peak_method",
    "spec",
}


def row_of(runs: pd.DataFrame, run_id: str) -> pd.Series:
    """The row of a run.

    Raises:
        UserError: there is none.
    """
    found = runs[runs.run_id == run_id]
    if found.empty:
        raise UserError(f"the table has no run {run_id!r}{nearest(run_id, runs.run_id)}")
    return found.iloc[0]


def train(run: RunSpec, root: Path) -> Path:
    """Trains a run from its beginning, in a process of its own; returns its folder.

    Raises:
        UserError: the training failed; it has said why.
    """
    folder, work = root / "runs" / run.run_id, root / "work" / run.run_id
    for old in (folder, work):
        shutil.rmtree(old, ignore_errors=True)
    file = root / "spec" / f"{run.run_id}.yaml"
    write_atomic(file, spec.to_yaml(run))
    several = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(run.resources.gpus)]
    start = [*several, "-m"] if run.resources.gpus > 1 else []
    command = [sys.executable, "-m", *start, f"experiments.{run.task}", str(file), str(folder)]
    done = subprocess.run([*command, "--work", str(work), "--track", "none"], cwd=tables.ROOT)
    if done.returncode:
        raise UserError(f"{run.run_id}: its command failed with status {done.returncode}")
    return folder


def hand_on(start: RunSpec, root: Path) -> None:
    """Trains the run that another starts from, and puts its model where that looks for it."""
    from experiments.export import export  # with torch and transformers

    folder = train(start, root)
    data = tables.ROOT / "data" / "prepared" / start.data.data_id
    export(folder, root / "work" / start.run_id, data)


def differing(
    row: pd.Series, metrics: pd.DataFrame, new_row: pd.Series, new_metrics: pd.DataFrame
) -> list[str]:
    """One line for each column of the row and of its measurements that is not the same."""
    lines = [
        f"{name}: {row[name]!r} in the table, {new_row.get(name)!r} now"
        for name in row.index
        if name not in NOT_COMPARED and not _same(row[name], new_row.get(name))
    ]
    if len(metrics) != len(new_metrics):
        return [*lines, f"metrics: {len(metrics)} rows in the table, {len(new_metrics)} now"]
    for name in metrics:
        pairs = zip(metrics[name], new_metrics.get(name, [None] * len(metrics)), strict=True)
        unequal = [i for i, pair in enumerate(pairs) if not _same(*pair)]
        if name not in NOT_COMPARED and unequal:
            first = metrics.iloc[unequal[0]]
            lines.append(
                f"metrics: {name} in {len(unequal)} of {len(metrics)} rows, first at step "
                f"{first.step} ({first.split}): {first[name]!r} in the table, "
                f"{new_metrics[name].iloc[unequal[0]]!r} now"
            )
    return lines


def conditions(row: pd.Series, new_row: pd.Series) -> list[str]:
    """What may explain a difference: commit, data, versions, machine."""
    lines = []
    for name in ("commit", "data_fingerprint", "threads"):
        if not _same(row[name], new_row[name]):
            lines.append(f"{name}: {row[name]} in the table, {new_row[name]} now")
    if row.dirty or new_row.dirty:
        lines.append("code: with uncommitted changes")
    for name in ("versions", "machine"):
        then, now = json.loads(row[name]), json.loads(new_row[name])
        for key in sorted({*then, *now}):
            if then.get(key) != now.get(key):
                lines.append(f"{name}: {key} {then.get(key)} in the table, {now.get(key)} now")
    return lines


def _same(one: Any, other: Any) -> bool:
    """Equality to the bit; what is missing equals what is not a number."""
    return one == other or (_missing(one) and _missing(other))


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def rerun(folder: Path, run_id: str, root: Path) -> tuple[list[str], list[str]]:
    """Runs a row again.

    Args:
        folder: of the tables.
        run_id: names the row.
        root: gets the new run, in ``runs`` and ``work``.

    Returns:
        Numbers that differ, and conditions that do.
    """
    runs, metrics = results.read_tables(folder)
    row = row_of(runs, run_id)
    run = tables.run_spec(row)
    if run.model.run:  # tables hold no weights: those that it starts from are trained again, too
        hand_on(tables.run_spec(row_of(runs, run.model.run)), root)
    new_runs, new_metrics = results.collect([train(run, root)])
    old = metrics[metrics.run_id == run_id].reset_index(drop=True)
    return differing(row, old, new_runs.iloc[0], new_metrics), conditions(row, new_runs.iloc[0])


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.rerun", description=__doc__)
    parser.add_argument("suite", help="whose tables: those in results/, else those in git")
    parser.add_argument("run_id", help="a row of its runs.parquet")
    parser.add_argument("--tables", type=Path, metavar="DIR", help="another folder of tables")
    arguments = parser.parse_args()
    folder = arguments.tables or tables.find(arguments.suite)
    root = tables.ROOT / "results" / "rerun" / arguments.suite
    numbers, other = rerun(folder, arguments.run_id, root)
    for line in other:
        print(f"other conditions: {line}")
    for line in numbers:
        print(f"differs: {line}")
    if numbers:
        raise SystemExit(1)
    print(f"{arguments.run_id}: every number is that of {folder}, weights_sha256 included")


if __name__ == "__main__":
    command_line(_main)
