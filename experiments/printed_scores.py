"""Printed results of fine-tuning (``printed/glue.yaml``, ``instruct.yaml``) and the runs beside."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from experiments import spec
from experiments.spec import Name, RunSpec, Strict

FOLDER = Path(__file__).parent / "printed"
FILES = ("glue", "instruct")


class Row(Strict):
    """Values of one method; see the head of ``glue.yaml``."""

    method: str
    model: str | None = None
    variant: Name | None = None
    setting: str = ""
    memory: str = ""
    values: Annotated[dict[Name, float], Field(min_length=1)]
    average: float | None = None
    reason: str | None = None


class Table(Strict):
    """One printed table.

    Attributes:
        source, where, note: for the reader.
        model: of all rows that name no other.
        columns: task to the column of ``runs.parquet`` that stands beside it.
        reasons: why a task has no such column.
        percent: whether ours, a share of one, is to be multiplied by 100.
        one_run_a_task: a row's studies are ``variant_task``; otherwise one, ``variant``, has all.
    """

    source: str
    where: str
    model: str | None = None
    columns: dict[Name, str]
    reasons: dict[Name, str] = {}
    percent: bool = True
    one_run_a_task: bool = True
    note: str = ""
    rows: Annotated[list[Row], Field(min_length=1)]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for row in self.rows:
            if not (row.model or self.model):
                raise ValueError(f"row {row.method}: no 'model'")
            for task in row.values:
                if not (row.reason or task in self.columns or task in self.reasons):
                    raise ValueError(
                        f"row {row.method}, {task}: give 'columns', 'reasons' or the row's 'reason'"
                    )
        return self


class PrintedFile(Strict):
    """The whole file, by the tables' names; ``variant`` names the studies of most rows."""

    variant: Name
    tables: dict[Name, Table]


class Cell(NamedTuple):
    """One printed value.

    Attributes:
        table: its name in the file.
        row: with method, setting and memory.
        model, task: of which it is a result.
        value: as printed.
        study: of the run that stands beside it.
        column: of ``runs.parquet``, that holds ours; None where there is none.
        reason: why there is no run or column, or "".
    """

    table: str
    row: Row
    model: str
    task: str
    value: float
    study: str
    column: str | None
    reason: str


def read(name: str) -> PrintedFile:
    """The printed values of ``printed/<name>.yaml``, checked."""
    return spec.load(PrintedFile, FOLDER / f"{name}.yaml")


def cells(printed: PrintedFile) -> Iterator[Cell]:
    """Every printed value."""
    for name, table in printed.tables.items():
        for row in table.rows:
            variant = row.variant or printed.variant
            for task, value in row.values.items():
                reason = row.reason or table.reasons.get(task, "")
                yield Cell(
                    table=name,
                    row=row,
                    model=row.model or table.model or "",
                    task=task,
                    value=value,
                    study=f"{variant}_{task}" if table.one_run_a_task else variant,
                    column=None if reason else table.columns[task],
                    reason=reason,
                )


def runs_of(cell: Cell, runs: list[RunSpec]) -> list[RunSpec]:
    """The runs that stand beside a printed value: one a seed; none where there is a reason."""
    if cell.reason:
        return []
    wanted = (cell.study, cell.model, cell.row.method)
    return [run for run in runs if (run.study, run.model.name, run.method.name) == wanted]
