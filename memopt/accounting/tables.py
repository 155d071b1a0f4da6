"""The command's tables, drawn by rich."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memopt.accounting.fit import Step
from memopt.accounting.report import Report
from memopt.accounting.units import PARTS, convert, decimal, table_unit
from memopt.errors import UnsupportedCombination

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console() -> Console:
    """Where tables go.

    Raises:
        UnsupportedCombination: rich is not installed.
    """
    try:
        from rich.console import Console
    except ModuleNotFoundError:
        raise UnsupportedCombination(
            "the table needs the package rich (pip install rich); or use --json"
        ) from None
    return Console()


def comparison(model: str, reports: Sequence[Report]) -> Table:
    """One row a method, with the total as a share of the first one's."""
    first = reports[0]
    unit = table_unit(max(report.total for report in reports))
    table = _table(
        f"{model} · {first.elements / 1e6:,.2f} M weights · {first.dtype}, {unit}",
        [*PARTS, "total", f"of {first.method}"],
    )
    for report in reports:
        figures = [getattr(report, part) for part in (*PARTS, "total")]
        cells = [f"{convert(value, unit):,.3f}" for value in figures]
        table.add_row(report.method, *cells, f"{report.total / first.total:.1%}")
    return table


def whole_steps(
    model: str,
    steps: Sequence[Step],
    memory: int | None,
    batches: Sequence[int] | None,
    measured: Sequence[int | None] | None = None,
) -> Table:
    """One row a method: what a whole step takes, the largest batch, and what a GPU measured."""
    first = steps[0].workload
    unit = table_unit(max(step.peak for step in steps))
    work = f"{first.micro_batches} x {first.batch} x {first.seq} tokens"
    if first.checkpointing:
        work += ", checkpointing"
    columns = ["weights", "gradients", "states", "activations", "update", "peak"]
    columns += ["CUDA"] if measured is not None else []
    columns += ["fits", "max batch"] if batches is not None else []
    table = _table(
        f"{model} · {steps[0].report.dtype} · {work}, {unit}",
        columns,
        caption="peak: the most at once; each part has its own highest moment. states: with "
        "projections. update: what one update needs for a moment. max batch: by arithmetic from "
        "passes with two batches",
    )
    for index, step in enumerate(steps):
        report = step.report
        figures: list[int | None] = [report.weights, report.gradients]
        figures.append(report.states + report.projections)
        figures += [step.activations, report.transient or 0, step.peak]
        figures += [] if measured is None else [measured[index]]
        row = ["–" if value is None else f"{convert(value, unit):,.2f}" for value in figures]
        if batches is not None and memory is not None:
            row += ["yes" if step.peak <= memory else "no", str(batches[index])]
        table.add_row(report.method, *row)
    return table


def verdict(steps: Sequence[Step], memory: int, batches: Sequence[int]) -> list[str]:
    """The answer in words, checked by a pass with the batch that it names."""
    space = decimal(memory)
    best = max(range(len(steps)), key=lambda index: batches[index])
    fitting = [s.report.method for s in steps if s.peak <= memory]
    asked = steps[0].workload.batch
    lines = [f"batch {asked} fits in {space} with: {', '.join(fitting) or 'none of these'}"]
    if batches[best] == 0:
        return [*lines, "no batch fits with any of them: try --compare all, or --checkpointing"]
    step = steps[best].with_batch(batches[best])
    lines.append(
        f"most room: {step.report.method}, micro-batches of up to {batches[best]} "
        f"(a pass with that batch: {decimal(step.peak)})"
    )
    return lines


def _table(title: str, columns: Sequence[str], caption: str | None = None) -> Table:
    from rich.table import Table

    table = Table(title=title, caption=caption, padding=(0, 0), expand=False)
    table.add_column("method", no_wrap=True)
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
