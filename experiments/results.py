"""Result tables: one row a run, one row a measurement, from the folders that runs leave.

    python -m experiments.results collect results/smoke/tables results/smoke/runs/*

``runs.parquet`` holds the summaries, nested keys joined by underscores (``final_perplexity``,
``state_bytes_measured``), with the provenance that tells runs apart, and in ``spec`` the complete
``run.yaml`` as JSON, from which `experiments.rerun` runs a row again. ``metrics.parquet`` holds the
rows of every ``metrics.jsonl`` with the run's labels; ``split`` says which part a row was measured
on: ``train``, ``validation``, or a further part. ``final_<metric>`` is that of ``validation``,
``final_<part>_<metric>`` that of a further part, and ``final_score`` the one that ``score_metric``
names, by which tables rank; ``select`` says whether ``final`` is the last evaluation or the best,
``aggregate`` how tables and curves put seeds together.
``generations`` holds what a model tuned on instructions says, as JSON lines.
The order of the rows depends on the runs alone.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.errors import UserError, command_line
from experiments.files import canonical_json, load_yaml
from experiments.scores import BENCHMARKED, QUALITY

ORDER = ["study", "model", "method", "seeds_weights", "seeds_data", "run_id"]
PROVENANCE = (
    "commit",
    "dirty",
    "config_hash",
    "data_fingerprint",
    "threads",
    "started",
    "finished",
    "versions",
    "machine",
)
# There even where every run of a table diverged.
FINAL = (
    "final_validation_loss",
    "final_perplexity",
    "final_papers_biased_loss",
    "final_unigram_perplexity",
    "final_untuned_perplexity",
    *(f"final_{name}" for name in QUALITY),
    "final_majority_accuracy",
    "final_mmlu_choice_accuracy",
    "final_gsm8k_exact_match",
    "final_score",
    "score_metric",
    "select",
    "last_score",
    "best_score",
    "best_step",
)
METRICS = (
    "run_id",
    "study",
    "model",
    "method",
    "seed",
    "step",
    "tokens",
    "split",
    "loss",
    "lr",
    "grad_norm",
    "seconds",
    *QUALITY,
    *BENCHMARKED,
)


def collect(run_dirs: list[Path]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Reads finished runs into the two tables.

    Raises:
        UserError: a folder is missing, unfinished, damaged, or given twice under two names.
    """
    runs: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    for folder in run_dirs:
        run = _run_row(folder)
        if run["run_id"] in {other["run_id"] for other in runs}:
            raise UserError(f"{folder}: the run {run['run_id']} is there twice")
        runs.append(run)
        labels = {key: run[key] for key in ("run_id", "study", "model", "method")}
        labels["seed"] = run["seeds_weights"]
        metrics += [labels | row for row in _lines(folder / "metrics.jsonl")]
    if not runs:
        raise UserError("no run folder given")
    table = pd.DataFrame(runs).sort_values(ORDER, kind="stable", ignore_index=True)
    for name in FINAL:
        if name not in table:
            table[name] = float("nan")
    position = {run_id: index for index, run_id in enumerate(table.run_id)}
    metrics.sort(key=lambda row: position[row["run_id"]])  # stable: rows of a run keep their order
    return table, pd.DataFrame(metrics, columns=list(METRICS))


def read_tables(folder: str | Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables ``runs`` and ``metrics`` that ``collect`` wrote into a folder.

    Raises:
        UserError: they are not there.
    """
    paths = [Path(folder) / f"{name}.parquet" for name in ("runs", "metrics")]
    for path in paths:
        if not path.is_file():
            raise UserError(
                f"{path}: no such table; make it with `snakemake`, or with "
                f"`python -m experiments.results collect {folder} RUN_DIR...`"
            )
    runs, metrics = map(pd.read_parquet, paths)
    return runs, metrics


def _run_row(folder: Path) -> dict[str, Any]:
    """One row of the runs table."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such run folder")
    summary = _json(folder / "summary.json")
    provenance = _json(folder / "provenance.json")
    try:
        summary["method_args"] = json.dumps(summary["method_args"], sort_keys=True)
        known = {key: _cell(provenance[key]) for key in PROVENANCE}
        known["spec"] = canonical_json(load_yaml(folder / "run.yaml"))
    except KeyError as error:
        raise UserError(f"{folder}: summary or provenance lacks the key {error}") from None
    said = folder / "generations.jsonl"
    if said.is_file():
        known["generations"] = said.read_text(encoding="utf-8")
    return _flat(summary) | known


def _cell(value: Any) -> Any:
    """A value that fits a cell: versions and machine as JSON."""
    return canonical_json(value) if isinstance(value, dict) else value


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by underscores."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= (
            _flat(value, f"{prefix}{key}_") if isinstance(value, dict) else {prefix + key: value}
        )
    return flat


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the run has not finished") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object")
    return content


def _lines(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSON-lines file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the run has not finished") from None
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise UserError(f"{path}, line {number}: not valid JSON: {error}") from None
    return rows


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.results")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("collect", help="write runs.parquet and metrics.parquet")
    command.add_argument("out", type=Path, metavar="OUT_DIR")
    command.add_argument("runs", type=Path, nargs="+", metavar="RUN_DIR")
    arguments = parser.parse_args()
    runs, metrics = collect(arguments.runs)
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs.to_parquet(arguments.out / "runs.parquet", index=False)
    metrics.to_parquet(arguments.out / "metrics.parquet", index=False)
    print(f"{len(runs)} runs, {len(metrics)} measurements in {arguments.out}")


if __name__ == "__main__":
    command_line(_main)
