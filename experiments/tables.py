"""Where a suite's result tables lie: new ones in ``results``, chosen ones in git.

    python -m experiments.tables keep smoke

copies ``results/smoke/tables`` to ``paper_figures/tables/smoke``. From there ``make figures`` draws
the figures of a fresh clone, notebooks open, and `experiments.rerun` runs a row again. Speeds are
left out, unless ``--speeds`` says that the runs had the machine to themselves. ``--add`` keeps what
is there already: runs that are new join the others, runs that are there are compared and stay.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd

from experiments import results, spec
from experiments.errors import UserError, command_line, nearest
from experiments.spec import RunSpec

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "paper_figures" / "tables"
# The first two are needed.
NAMES = (
    "runs",
    "metrics",
    "elsewhere",
    "memory",
    "steps",
    "timeline",
    "gradients",
    "micro_batches",
)
# Of trainings of their own, named on each row: they stay where no new one is made.
LASTING = ("gradients", "micro_batches")
# Git holds every version for ever; some hundred runs take well below this.
LARGEST_SUITE = 2_000_000
Tables = dict[str, pd.DataFrame]
SPEEDS = ("seconds", "tokens_per_second", "time_shares_optimizer", "time_shares_outside")


def find(suite: str) -> Path:
    """The folder of a suite's tables: of runs made here, else the one in git.

    Raises:
        UserError: there is neither.
    """
    for folder in (ROOT / "results" / suite / "tables", KEPT / suite):
        if (folder / "runs.parquet").is_file():
            return folder
    raise UserError(
        f"no tables of the suite {suite!r} in results/ or paper_figures/tables/"
        f"{nearest(suite, kept())}; make them with `snakemake --config suite={suite}`"
    )


def kept() -> list[str]:
    """Suites whose tables are in git."""
    return sorted(path.parent.name for path in KEPT.glob("*/runs.parquet"))


def read_further(folder: str | Path, name: str) -> pd.DataFrame | None:
    """One of the tables that not every suite has; None where it is not there."""
    file = Path(folder) / f"{name}.parquet"
    return pd.read_parquet(file) if file.is_file() else None


def run_spec(row: pd.Series) -> RunSpec:
    """The complete specification of one row of ``runs.parquet``.

    Raises:
        UserError: the row has none, or one that today's code does not read.
    """
    where = f"run {row.run_id}"
    if not isinstance(row.get("spec"), str):
        raise UserError(f"{where}: the table has no column 'spec'; collect the runs again")
    try:
        return spec.parse(RunSpec, json.loads(row.spec), where)
    except UserError as error:
        raise UserError(
            f"{error}\n(the run was made at commit {row.commit}, which reads its configuration)"
        ) from None


def keep(
    source: Path, suite: str, target: Path, *, speeds: bool = False, add: bool = False
) -> list[Path]:
    """Writes a suite's tables, compact, in place of those in ``target`` (but see `LASTING`).

    Args:
        source: folder with ``runs.parquet``, ``metrics.parquet`` and perhaps the others of `NAMES`.
        suite: whose runs they must be.
        target: folder that is replaced.
        speeds: whether times are worth keeping; else they are blank.
        add: whether the runs and the other tables in ``target`` stay.

    Returns:
        The files.

    Raises:
        UserError: tables are missing, hold another suite, cannot be run again, or are too large; or
            a run that is there already ended with other weights.
    """
    runs, metrics = results.read_tables(source)
    others = sorted(set(runs.suite) - {suite})
    if others:
        raise UserError(f"{source}: holds runs of the suite {others[0]!r}, not {suite!r}")
    for _, row in runs.iterrows():
        run_spec(row)
    if not speeds:
        runs, metrics = (
            table.assign(**{name: float("nan") for name in SPEEDS if name in table})
            for table in (runs, metrics)
        )
    tables = {"runs": runs, "metrics": metrics}
    if add:
        tables = _joined(dict(zip(tables, results.read_tables(target), strict=True)), tables)
    for name in NAMES[2:]:
        further = _further(name, (source, target) if add or name in LASTING else (source,))
        if further is not None:
            tables[name] = further
    new = target.with_name(f".{target.name}.partial")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for name, table in tables.items():
        table.to_parquet(new / f"{name}.parquet", index=False, **_compact(table))
    size = sum(path.stat().st_size for path in new.iterdir())
    if size > LARGEST_SUITE:
        shutil.rmtree(new)
        raise UserError(
            f"{source}: {size:,} bytes, more than the {LARGEST_SUITE:,} that git should hold; "
            "log less often (train.log_every) or split the suite"
        )
    shutil.rmtree(target, ignore_errors=True)
    new.rename(target)
    return sorted(target.iterdir())


def _further(name: str, folders: tuple[Path, ...]) -> pd.DataFrame | None:
    """A further table: that of the first folder; where it has rows of runs, all folders' rows."""
    found = [t for folder in folders if (t := read_further(folder, name)) is not None]
    if len(found) < 2 or "run_id" not in found[0]:
        return found[0] if found else None
    new, there = found
    both = [new, there[~there.run_id.isin(new.run_id)]]
    return pd.concat(both).sort_values("run_id", kind="stable", ignore_index=True)


def _joined(there: Tables, new: Tables) -> Tables:
    """The tables ``runs`` and ``metrics`` with the new runs among those that are there.

    Raises:
        UserError: a run stands in both and did not end with the same weights.
    """
    both = there["runs"].merge(new["runs"], on="run_id", suffixes=("", "_new"))
    other = both[both.weights_sha256 != both.weights_sha256_new]
    if not other.empty:
        row = other.iloc[0]
        raise UserError(
            f"run {row.run_id}: trained at commit {row.commit_new}, it ends with other weights than"
            f" its row in git, of commit {row.commit}; `python -m experiments.rerun` tells where"
        )
    runs = there["runs"]
    fresh = {name: table[~table.run_id.isin(runs.run_id)] for name, table in new.items()}
    runs = pd.concat([runs, fresh["runs"]]).sort_values(results.ORDER, kind="stable")
    metrics = pd.concat([there["metrics"], fresh["metrics"]])
    place = metrics.run_id.map({run_id: place for place, run_id in enumerate(runs.run_id)})
    metrics = metrics.iloc[
        place.to_numpy().argsort(kind="stable")
    ]  # rows of a run keep their order
    return {"runs": runs.reset_index(drop=True), "metrics": metrics.reset_index(drop=True)}


def _compact(table: pd.DataFrame) -> dict[str, Any]:
    """How Parquet stores a table smallest: bytes of floats sorted by place, text by dictionary."""
    floats = [name for name in table if pd.api.types.is_float_dtype(table[name])]
    return {
        "compression": "zstd",
        "compression_level": 19,
        "use_dictionary": [name for name in table if name not in floats],
        "use_byte_stream_split": floats,
    }


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.tables")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("keep", help="copy a suite's tables to where git keeps them")
    command.add_argument("suite")
    command.add_argument("--tables", type=Path, metavar="DIR", help="default results/SUITE/tables")
    command.add_argument("--speeds", action="store_true", help="keep times: nothing else ran")
    command.add_argument("--add", action="store_true", help="beside the runs that are in git")
    arguments = parser.parse_args()
    suite = arguments.suite
    source = arguments.tables or ROOT / "results" / suite / "tables"
    files = keep(source, suite, KEPT / suite, speeds=arguments.speeds, add=arguments.add)
    runs, metrics = results.read_tables(KEPT / suite)
    size = sum(path.stat().st_size for path in files)
    print(f"{len(runs)} runs, {len(metrics)} measurements, {size:,} bytes in {KEPT / suite}")
    if runs.dirty.any():
        print(f"{int(runs.dirty.sum())} runs were made by code with uncommitted changes")


if __name__ == "__main__":
    command_line(_main)
