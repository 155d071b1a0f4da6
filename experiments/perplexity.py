"""Printed perplexities (``printed/perplexity.yaml``) and the runs that stand beside them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

from pydantic import Field, PositiveInt, model_validator

from experiments import spec
from experiments.scores import perplexity
from experiments.spec import Name, RunSpec, Strict

if TYPE_CHECKING:
    import pandas as pd

FILE = Path(__file__).parent / "printed" / "perplexity.yaml"
MAIN = "c4"


class Row(Strict):
    """Values of one method; see the head of the file."""

    method: str
    variant: Name = MAIN
    at: PositiveInt | None = None
    values: Annotated[dict[Name, Annotated[float, Field(gt=1)]], Field(min_length=1)]
    reason: str | None = None


class Table(Strict):
    """One printed table."""

    source: str
    where: str
    note: str = ""
    rows: Annotated[list[Row], Field(min_length=1)]


class PrintedFile(Strict):
    """The whole file, by the tables' names."""

    tables: dict[Name, Table]

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        for name, table in self.tables.items():
            seen = [(r.method, r.variant, r.at, model) for r in table.rows for model in r.values]
            twice = {cell for cell in seen if seen.count(cell) > 1}
            if twice:
                raise ValueError(f"table {name}: two values for {sorted(map(str, twice))[0]}")
        return self


class Cell(NamedTuple):
    """One printed value.

    Attributes:
        table: its name in the file.
        row: with method, variant and steps.
        model: name of the model.
        value: the printed perplexity.
    """

    table: str
    row: Row
    model: str
    value: float

    @property
    def study(self) -> str:
        """The study of the run that stands beside it."""
        return f"{self.row.variant}_{self.model.removeprefix('llama_')}"


def read(path: Path = FILE) -> PrintedFile:
    """The printed values, checked."""
    return spec.load(PrintedFile, path)


def cells(printed: PrintedFile) -> Iterator[Cell]:
    """Every printed value."""
    for name, table in printed.tables.items():
        for row in table.rows:
            for model, value in row.values.items():
                yield Cell(name, row, model, value)


def runs_of(cell: Cell, runs: list[RunSpec]) -> list[RunSpec]:
    """The runs that stand beside a printed value: one a seed; none where there is a reason."""
    if cell.row.reason:
        return []
    wanted = (cell.study, cell.model, cell.row.method)
    return [run for run in runs if (run.study, run.model.name, run.method.name) == wanted]


def beside(printed: PrintedFile, runs: pd.DataFrame, metrics: pd.DataFrame) -> pd.DataFrame:
    """One row a printed value, with ours where the run is finished.

    Args:
        printed: content of the file.
        runs: ``runs.parquet`` of the suite.
        metrics: its ``metrics.parquet``.

    Returns:
        Columns ``table, source, where, model, method, variant, at, printed, loss`` (mean over
        seeds), ``ours`` (its perplexity), ``difference_percent``, ``seeds``, ``reason``.
    """
    import pandas as pd

    rows = []
    for cell in cells(printed):
        table, row = printed.tables[cell.table], cell.row
        chosen = runs[
            (runs.study == cell.study) & (runs.model == cell.model) & (runs.method == row.method)
        ]
        losses = [
            loss for run in chosen.run_id if (loss := _loss(run, row.at, metrics)) is not None
        ]
        mean = math.fsum(losses) / len(losses) if losses else math.nan
        ours = perplexity(mean) if losses else math.nan
        rows.append(
            {
                "table": cell.table,
                "source": table.source,
                "where": table.where,
                "model": cell.model,
                "method": row.method,
                "variant": row.variant,
                "at": row.at,
                "printed": cell.value,
                "loss": mean,
                "ours": ours,
                "difference_percent": 100 * (ours / cell.value - 1),
                "seeds": len(losses),
                "reason": row.reason or table.note or "",
            }
        )
    return pd.DataFrame(rows).astype({"at": "Int64"})


def _loss(run_id: str, at: int | None, metrics: pd.DataFrame) -> float | None:
    """Held-out loss of a run after ``at`` steps, or at its end."""
    held_out = metrics[(metrics.run_id == run_id) & (metrics.split == "validation")]
    held_out = held_out[held_out.step == at] if at else held_out.tail(1)
    return None if held_out.empty else float(held_out.loss.iloc[0])
