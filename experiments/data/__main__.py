"""Prepares data, lists the sources, compares two corpora."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.data.sources import load_sources
from experiments.data.tokens import MANIFEST
from experiments.errors import command_line
from experiments.spec import DataSpec, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from experiments.data.prepare import Progress


def main() -> None:
    """Reads the command line and does what it says."""
    parser = argparse.ArgumentParser(prog="python -m experiments.data", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("prepare", help="make a prepared data folder")
    making.add_argument("spec", type=Path, metavar="DATA.yaml")
    making.add_argument("out", type=Path, metavar="OUT_DIR")
    making.add_argument(
        "--workers", type=int, default=os.cpu_count() or 1, help="processes and threads"
    )
    commands.add_parser("list", help="show the data sources")
    comparing = commands.add_parser("distance", help="compare a corpus with another, such as C4")
    comparing.add_argument("spec", type=Path, metavar="DATA.yaml")
    comparing.add_argument("reference", type=Path, metavar="REFERENCE.yaml")
    comparing.add_argument("tokenizer", type=Path, metavar="TOKENIZER_DIR")
    arguments = parser.parse_args()
    if arguments.command == "list":
        show_sources()
    elif arguments.command == "distance":
        show_distance(arguments.spec, arguments.reference, arguments.tokenizer)
    else:
        prepare_shown(arguments.spec, arguments.out, arguments.workers)


def prepare_shown(spec_file: Path, out_dir: Path, workers: int) -> None:
    """Prepares data with a progress bar on a terminal, and says what was made."""
    # Read by the tokenizers library when it is first used.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true" if workers > 1 else "false")
    os.environ.setdefault("RAYON_NUM_THREADS", str(workers))
    from experiments.data.prepare import prepare

    there = (out_dir / MANIFEST).is_file()
    start = time.perf_counter()
    with progress_bar() as progress:
        manifest = prepare(load(DataSpec, spec_file), out_dir, workers, progress)
    seconds = time.perf_counter() - start
    sizes = "; ".join(
        f"{name}: "
        + ", ".join(f"{part[k]:,} {k}" for k in ("documents", "tokens", "rows") if k in part)
        for name, part in manifest["splits"].items()
    )
    print(f"{out_dir}: {manifest['data_id']} ({sizes})")
    if tokens := sum(part.get("tokens", 0) for part in manifest["splits"].values() if not there):
        rate = tokens / seconds
        print(f"{seconds:.0f} s, {rate:,.0f} tokens a second, reading and writing included")
    if manifest["source"].get("as_recorded") is False:
        print(
            "note: this corpus is not the one whose fingerprint data/sources.yaml records; "
            "other package versions carry other text",
            file=sys.stderr,
        )


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, int] = {}

        def show(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield show


def show_distance(spec: Path, reference: Path, tokenizer: Path) -> None:
    """Prints how far a corpus is from a reference."""
    from experiments.data.distance import distance

    found = distance(load(DataSpec, spec), load(DataSpec, reference), tokenizer)
    print(
        f"{found['kl']:.2f} nats per token from the reference; the corpus has "
        f"{found['megabytes']:.1f} MB, {found['tokens']:,.0f} tokens"
    )


def show_sources() -> None:
    """Prints a table of the sources."""
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(Column("source", no_wrap=True), "kind", "task", "what", "licence")
    for name, source in load_sources().items():
        table.add_row(name, source.kind, source.task, source.title, source.licence)
    Console().print(table)


if __name__ == "__main__":
    command_line(main)
