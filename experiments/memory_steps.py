"""The table of whole steps: LOMO's and COAP's peaks, AdamA's micro-batches, the largest model.

    python -m experiments.memory_steps results/smoke/tables --suite smoke

Nothing is trained: forward and backward run on tensors without memory (`memopt.accounting.step`).
A suite says how broad (``steps`` in its file): ``all``; ``less``, with fewer models, cards and
precisions; ``least``, the same code on small stand-ins, with nothing to compare.

``timeline.parquet`` is the course of a traced step: ``model``, ``method``, ``dtype``, ``operation``
(its number), ``phase``, and the bytes of each kind of `memopt.accounting.tracing.KINDS`.

``steps.parquet`` has one row a figure. Columns:

- ``study``: ``lomo_table1``, ``coap_figure2``, ``galore_table11``, ``micro_batches``,
  ``largest_model``.
- ``source``, ``where``: the paper and its table or figure.
- ``model``, ``method``, ``arguments`` (JSON), ``dtype``, ``batch`` (sequences in a micro-batch),
  ``seq``, ``micro_batches``, ``checkpointing``, ``in_backward``, ``processes``, ``memory`` (bytes).
- ``part``: ``weights``, ``gradients``, ``states`` (with projections), ``activations``, ``update``
  (transient), ``sum`` (the first four, as LOMO adds), ``peak``; or ``layers``, ``parameters`` of
  the largest model.
- ``value``: bytes; a count for ``layers`` and ``parameters``.
- ``unit``, ``printed``, ``ours``, ``agreement``, ``reason``: beside what the paper prints; the
  agreement is one of `memory.AGREEMENTS`, or ``other model`` where closeness would mean nothing.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from experiments import memory, spec, suites
from experiments.errors import command_line
from memopt import catalog
from memopt.accounting import convert, shapes, step, trace
from memopt.accounting.fit import Step

PRINTED = Path(__file__).parent / "printed" / "steps.yaml"
TEXT = ("study", "source", "where", "model", "method", "arguments", "dtype", "part", "unit")
COLUMNS = {
    **dict.fromkeys(TEXT, "string"),
    **dict.fromkeys(("batch", "seq", "micro_batches", "processes", "memory", "value"), "Int64"),
    **dict.fromkeys(("checkpointing", "in_backward"), "boolean"),
    **dict.fromkeys(("printed", "ours"), "float64"),
    **dict.fromkeys(("agreement", "reason"), "string"),
}
# AdamA: its batch and length are not published
MINI_BATCH, LENGTH = 64, 128
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)
ADAMA_MODELS = ("bert_large", "bert_4b")
STAND_IN = "minilm_l6"
ADAMA_METHODS = ("adamw", "adama")
PRECISIONS = ("float32", "mixed")
CARDS = (16 * 10**9, 32 * 10**9, 80 * 10**9)  # V100, V100, A100
PROCESSES = 8
TIMELINES = ("adamw", "lomo", "adalomo", "adama", "gwt")
POINTS = 300
DEPTHS = (4, 8)  # layers from which deeper models are told
DEEP = {"batch": 8, "seq": 128, "micro_batches": 8}  # of the largest model; a choice of ours
Part = Literal["weights", "gradients", "states", "activations", "sum", "peak"]


class Row(spec.Strict):
    """One line of a paper's table of steps."""

    method: str
    arguments: dict[str, Any] = {}
    dtype: str
    checkpointing: bool = False
    in_backward: bool = False
    printed: dict[Part, str] = {}


class Table(spec.Strict):
    """One study of ``printed/steps.yaml``."""

    source: str
    where: str
    model: str
    workload: dict[str, Any]
    unit: str
    comparable: bool = True
    reason: str
    rows: list[Row]


class File(spec.Strict):
    """``printed/steps.yaml``."""

    lomo_table1: Table
    coap_figure2: Table
    galore_table11: Table


def parts(whole: Step) -> dict[str, int]:
    """A step's bytes by part."""
    report = whole.report
    held = {
        "weights": report.weights,
        "gradients": report.gradients,
        "states": report.states + report.projections,
        "activations": whole.activations,
    }
    total = sum(held.values())
    return held | {"sum": total, "update": report.transient or 0, "peak": whole.peak}


def paper_rows(study: str, table: Table) -> Iterator[dict[str, Any]]:
    """A paper's table, each part beside the printed one; methods outside the catalog wait."""
    for row in table.rows:
        if row.method not in catalog.METHODS:
            continue
        how = {"checkpointing": row.checkpointing, "in_backward": row.in_backward}
        whole = step(table.model, row.method, row.dtype, **table.workload, **how, **row.arguments)
        for part, value in parts(whole).items():
            yield {
                "study": study,
                "source": table.source,
                "where": table.where,
                **_what(whole, table.model, row.arguments),
                "in_backward": row.in_backward,
                "part": part,
                "value": value,
                **_beside(value, row.printed.get(part), table),
            }


def _what(whole: Step, model: str, arguments: dict[str, Any]) -> dict[str, Any]:
    work = whole.workload
    return {
        "model": model,
        "method": whole.report.method,
        "arguments": json.dumps(arguments),
        "dtype": whole.report.dtype,
        "batch": work.batch,
        "seq": work.seq,
        "micro_batches": work.micro_batches,
        "checkpointing": work.checkpointing,
        "processes": 1,
    }


def _beside(value: int, printed: str | None, table: Table) -> dict[str, Any]:
    if printed is None:
        return {}
    ours = convert(value, table.unit)
    agreement = memory.agrees(ours, printed) if table.comparable else "other model"
    reason = table.reason if agreement in ("differs", "other model") else ""
    figure = {"unit": table.unit, "printed": float(printed), "ours": ours}
    return figure | {"agreement": agreement, "reason": reason}


def micro_batch_rows(model: str, precisions: Sequence[str]) -> Iterator[dict[str, Any]]:
    """AdamA: the peak against the number of micro-batches of one mini-batch."""
    head = {"study": "micro_batches", "source": "AdamA", "where": "no printed table was found"}
    for dtype in precisions:
        for method in ADAMA_METHODS:
            one, many = (
                step(model, method, dtype, batch=2, seq=LENGTH, micro_batches=n) for n in (1, 2)
            )  # every later micro-batch is like the second
            for count in MICRO_BATCHES:
                batch = MINI_BATCH // count
                peak = (one if count == 1 else many).peak_at(batch)
                own = {"batch": batch, "micro_batches": count, "in_backward": False}
                yield {**head, **_what(one, model, {}), **own, "part": "peak", "value": peak}


def largest_rows(
    model: str, precisions: Sequence[str], cards: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """AdamA: the deepest model of one width for each card, method and precision."""
    head = {"study": "largest_model", "source": "AdamA", "where": "abstract: 1.26 to 3.14 times"}
    for dtype in precisions:
        for method in ADAMA_METHODS:
            for processes in (1, PROCESSES):
                for memory_bytes in cards:
                    layers = deepest(model, method, dtype, processes, memory_bytes)
                    whole = deep(model, method, dtype, layers)
                    row = {
                        **head, **_what(whole, model, {}), "processes": processes,
                        "memory": memory_bytes, "in_backward": False,
                    }  # fmt: skip
                    peak = _shared(whole, processes)
                    yield {**row, "part": "layers", "value": layers}
                    yield {**row, "part": "parameters", "value": whole.report.elements}
                    yield {**row, "part": "peak", "value": peak}


@cache
def deep(model: str, method: str, dtype: str, layers: int) -> Step:
    """A step of the model with another number of layers."""
    config = shapes.named(model) | {"num_hidden_layers": layers}
    return step(config, method, dtype, **DEEP)


def _shared(whole: Step, processes: int) -> int:
    """The peak of one of several processes, its states divided among them (ZeRO-1)."""
    states = whole.report.states
    return whole.peak - states + -(-states // processes)


def deepest(model: str, method: str, dtype: str, processes: int, limit: int) -> int:
    """The most layers whose peak is within a limit, checked by a pass; 0 if none is.

    Bytes at each moment are linear in the depth, so that the peak, the largest of them, is convex:
    beyond two small depths it is never below the line through them. What the line rules out does
    not fit; what it allows is tried.
    """
    low, high = DEPTHS
    small, large = (_shared(deep(model, method, dtype, n), processes) for n in DEPTHS)
    slope = (large - small) / (high - low)
    layers = max(int(low + (limit - small) // slope), 0)
    while layers > 0 and _shared(deep(model, method, dtype, layers), processes) > limit:
        layers -= 1
    return layers


def timeline_rows(file: File, methods: Sequence[str]) -> Iterator[dict[str, Any]]:
    """LOMO's step on LLaMA-7B with checkpointing, operation by operation, for several methods."""
    study = file.lomo_table1
    for method in methods:
        own = step(study.model, method, "bfloat16", **study.workload, checkpointing=True)
        arguments = memory.stored(method, {}, "bfloat16")
        followed = trace(own.workload.model, own.workload.inputs, method, "bfloat16", **arguments)
        head = {"model": study.model, "method": method, "dtype": followed.dtype}
        yield from ({**head, **row} for row in followed.thinned(POINTS))


def narrowed(file: File, breadth: str) -> File:
    """For ``least`` the papers' tables on a small model, with nothing to compare."""
    if breadth != "least":
        return file
    work = {"batch": 2, "seq": 32, "attention": "eager"}

    def small(table: Table) -> Table:
        rows = [
            row.model_copy(update={"printed": {}, "arguments": row.arguments | _small(row)})
            for row in table.rows
        ]
        return table.model_copy(update={"model": "llama_micro", "workload": work, "rows": rows})

    return File(**{study: small(getattr(file, study)) for study in File.model_fields})


def _small(row: Row) -> dict[str, Any]:
    return {"rank": 8} if "rank" in row.arguments else {}


def table(file: File, breadth: str) -> pd.DataFrame:
    """All rows of ``steps.parquet``."""
    rows = [row for study in File.model_fields for row in paper_rows(study, getattr(file, study))]
    precisions = PRECISIONS if breadth == "all" else PRECISIONS[:1]
    models = {"least": (STAND_IN,), "less": ADAMA_MODELS[:1], "all": ADAMA_MODELS}[breadth]
    for model in models:
        rows += micro_batch_rows(model, precisions)
    cards = {"least": (2 * 10**9,), "less": CARDS[:1], "all": CARDS}[breadth]
    rows += largest_rows(STAND_IN if breadth == "least" else ADAMA_MODELS[-1], precisions, cards)
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.memory_steps", description=__doc__)
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument("--suite", help="a file of experiments/suites, for its breadth")
    arguments = parser.parse_args()
    breadth = suites.breadth(arguments.suite) if arguments.suite else "all"
    file = narrowed(spec.load(File, PRINTED), breadth)
    frame = table(file, breadth)
    memory.write(frame, arguments.out / "steps.parquet")
    methods = TIMELINES if breadth == "all" else TIMELINES[:2]
    memory.write(pd.DataFrame(timeline_rows(file, methods)), arguments.out / "timeline.parquet")
    counts = frame.study.value_counts(sort=False)
    print(f"{arguments.out}/steps.parquet: {len(frame)} rows: {counts.to_dict()}")


if __name__ == "__main__":
    command_line(_main)
