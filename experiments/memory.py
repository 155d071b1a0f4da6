"""The table of bytes: every model and method by formula, and the papers' printed figures.

    python -m experiments.memory results/smoke/tables/memory.parquet --suite smoke

One row is one figure. Columns:

- ``table``: ``suite`` (the models and methods that the suite trains, as it trains them),
  ``papers`` (LLaMA 60M to 7B, every method at its papers' settings), or a table of
  ``printed/memory.yaml``.
- ``source``, ``where``, ``standing``: the paper's short name, which of its tables, and ``printed``,
  ``inferred`` (computed from published settings) or ``formula`` (ours alone).
- ``model``, ``method``, ``arguments`` (JSON), ``dtype`` (of weights and gradients), ``storage``
  (of optimizer state): what is counted. Free text where we cannot compute it.
- ``part``: ``weights``, ``gradients``, ``states``, ``projections``; for a sum its parts with ``+``.
- ``bytes``: ours, an integer; missing where the method or model is not in the library.
- ``convention``, ``unit``, ``printed``, ``ours``: the paper's way of counting, its unit, its
  figure, and ours in that unit.
- ``difference_percent``, ``agreement``, ``reason``: ours against the printed figure; the agreement
  is one of `AGREEMENTS`; the reason says what a difference comes from.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field
from torch import nn

from experiments import rundir, spec, suites
from experiments.errors import UserError, command_line
from memopt import catalog
from memopt.accounting import Report, convention, convert, predict, shapes
from memopt.accounting.units import PARTS

PRINTED = Path(__file__).parent / "printed" / "memory.yaml"
PAPER_MODELS = ("llama_60m", "llama_130m", "llama_350m", "llama_1b", "llama_3b", "llama_7b")
AGREEMENTS = ("printed digits", "within 0.1 %", "differs", "not computed")
COLUMNS = {
    **dict.fromkeys(("table", "source", "where", "standing", "model", "method"), "string"),
    **dict.fromkeys(("arguments", "dtype", "storage", "part"), "string"),
    "bytes": "Int64",
    **dict.fromkeys(("convention", "unit"), "string"),
    **dict.fromkeys(("printed", "ours", "difference_percent"), "float64"),
    **dict.fromkeys(("agreement", "reason"), "string"),
}


class PrintedRow(spec.Strict):
    """One row of a paper's table; see the head of ``printed/memory.yaml``."""

    method: str
    arguments: dict[str, Any] = {}
    targets: str = "auto"
    values: dict[str, Annotated[str, Field(pattern=r"^\d+(\.\d+)?$")]]
    part: Literal["weights", "gradients", "states", "projections"] | None = None
    unit: str | None = None
    dtype: str | None = None
    shared: Annotated[int, Field(ge=1)] = 1
    computed: bool | None = None
    reason: str = ""


class PrintedTable(spec.Strict):
    """One table of a paper."""

    source: str
    where: str
    standing: Literal["printed", "inferred"]
    convention: str
    computed: bool = True
    reason: str = ""
    rows: Annotated[list[PrintedRow], Field(min_length=1)]


class PrintedFile(spec.Strict):
    """``printed/memory.yaml``."""

    tables: dict[spec.Name, PrintedTable]


def formula_rows(
    table: str, model: str, method: str, dtype: str, arguments: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """One row for each part that a model and a method hold."""
    report = _predicted(model, method, dtype, json.dumps(arguments))
    for part in PARTS:
        yield {
            "table": table,
            "standing": "formula",
            **_what(model, method, dtype, arguments),
            "part": part,
            "bytes": getattr(report, part),
        }


def suite_rows(suite: str) -> Iterator[dict[str, Any]]:
    """Formula rows of everything that a suite trains on a model of a named shape.

    A classifier has a head that its shape lacks; its bytes stand in the runs' own tables.
    """
    seen = set()
    for run in suites.expand(suite):
        if run.task == "finetune":
            continue
        model, method = run.model.name, run.method.name
        # under autocast weights, gradients and states are float32
        dtype = run.train.dtype.replace("bfloat16_autocast", "float32")
        arguments = dict(run.method.args)
        if catalog.get(method).timing == "in backward":
            arguments["micro_batches"] = run.train.micro_batches  # as training tells it
        key = (model, method, dtype, json.dumps(arguments))
        if model in shapes.names() and key not in seen:
            seen.add(key)
            yield from formula_rows("suite", model, method, dtype, arguments)


def paper_rows() -> Iterator[dict[str, Any]]:
    """Formula rows of the papers' models at the papers' settings: 16-bit weights and states."""
    for model in PAPER_MODELS:
        for method, entry in catalog.METHODS.items():
            if entry.kind == "distributed":
                continue  # its bytes depend on the number of processes
            choice = suites.MethodChoice(name=method, lr=1.0)  # a rate changes no byte
            arguments = stored(method, suites.method_spec(choice, model, "c4").args, "bfloat16")
            yield from formula_rows("papers", model, method, "bfloat16", arguments)


def printed_rows(file: PrintedFile) -> Iterator[dict[str, Any]]:
    """The papers' figures, each beside ours."""
    for name, table in file.tables.items():
        for row in table.rows:
            for model, value in row.values.items():
                where = f"{PRINTED.name}: {name}: {model}, {row.method}"
                try:
                    figure = _printed_row(table, row, model, value)
                except ValueError as error:
                    raise UserError(f"{where}: {error}") from None
                if figure["agreement"] in ("differs", "not computed") and not figure["reason"]:
                    raise UserError(f"{where}: {figure['agreement']}, but no reason is given")
                yield {"table": name, **figure}


def _printed_row(table: PrintedTable, row: PrintedRow, model: str, value: str) -> dict[str, Any]:
    rule = convention(table.convention)
    unit = row.unit or rule.unit
    printed = float(value)
    figure = {
        "source": table.source,
        "where": table.where,
        "standing": table.standing,
        "model": model,
        "method": row.method,
        "part": row.part or "+".join(rule.counts),
        "convention": rule.name,
        "unit": unit,
        "printed": printed,
        "agreement": "not computed",
        "reason": row.reason or table.reason,
    }
    if not (table.computed if row.computed is None else row.computed):
        return figure
    dtype = row.dtype or rule.dtype
    arguments = stored(row.method, row.arguments, rule.storage)
    report = _predicted(model, row.method, dtype, json.dumps(arguments), row.targets)
    counted = -(-report.counted(rule, row.part) // row.shared)
    ours = convert(counted, unit)
    agreement = agrees(ours, value)
    return (
        figure
        | _what(model, row.method, dtype, arguments, row.targets)
        | {
            "bytes": counted,
            "ours": ours,
            "difference_percent": 100 * (ours / printed - 1) if printed else None,
            "agreement": agreement,
            "reason": figure["reason"] if agreement == "differs" else "",
        }
    )


def agrees(ours: float, printed: str) -> str:
    """How a figure meets a printed one: one of `AGREEMENTS`."""
    decimals = len(printed.partition(".")[2])
    if abs(ours - float(printed)) <= 0.5 * 10**-decimals:
        return "printed digits"
    return "within 0.1 %" if abs(ours / float(printed) - 1) <= 1e-3 else "differs"


def _every_matrix(name: str, param: nn.Parameter) -> bool:
    """Targets of COAP's other models: embedding and head included."""
    return param.ndim == 2


@cache
def _predicted(
    model: str, method: str, dtype: str, arguments: str, targets: str = "auto"
) -> Report:
    chosen = _every_matrix if targets == "every-matrix" else targets
    return predict(model, method, dtype, targets=chosen, **json.loads(arguments))


def stored(method: str, arguments: dict[str, Any], storage: str) -> dict[str, Any]:
    """The arguments with a storage, where the method leaves the choice (8-bit Adam does not)."""
    has_choice = catalog.get(method).arguments().get("storage") == "float32"
    return {"storage": storage, **arguments} if has_choice else arguments


def _what(
    model: str, method: str, dtype: str, arguments: dict[str, Any], targets: str = "auto"
) -> dict[str, Any]:
    """The columns that identify a computed figure; unusual targets stand among the arguments."""
    entry = catalog.get(method)
    storage = arguments.get("storage") or entry.arguments().get("storage") or entry.storage
    shown = {key: value for key, value in arguments.items() if key != "storage"}
    return {
        "model": model,
        "method": method,
        "arguments": json.dumps(shown | ({} if targets == "auto" else {"targets": targets})),
        "dtype": dtype,
        "storage": storage,
    }


def table(suite: str | None) -> pd.DataFrame:
    """All rows: the suite's (if one is named), the papers' models, the printed figures."""
    rows = [*suite_rows(suite)] if suite else []
    rows += [*paper_rows(), *printed_rows(spec.load(PrintedFile, PRINTED))]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def write(frame: pd.DataFrame, out: Path) -> None:
    """Writes a table whole or not at all; its ``attrs`` name the commit that computed it."""
    frame.attrs |= rundir.commit()
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f".{out.name}.partial")
    frame.to_parquet(partial, index=False)
    partial.replace(out)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.memory", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT.parquet")
    parser.add_argument("--suite", help="adds the rows of a file of experiments/suites")
    arguments = parser.parse_args()
    frame = table(arguments.suite)
    write(frame, arguments.out)
    counts = frame.agreement.value_counts()
    print(f"{arguments.out}: {len(frame)} rows; printed figures: {counts.to_dict()}")


if __name__ == "__main__":
    command_line(_main)
