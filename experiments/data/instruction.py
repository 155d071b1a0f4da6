"""Instructions with their answers: from a source's official fields to our three.

``instruction``, ``input`` (empty where there is none) and ``output``, as text; a template and the
model's tokenizer make ids of them at training.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.packages import Progress, Row
from experiments.data.parts import load_parts, write_parts
from experiments.data.readers import Corpus, numbered
from experiments.data.sources import AnySource
from experiments.data.splits import hold_out, in_slice, refuse_fraction
from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.spec import DataSpec

if TYPE_CHECKING:
    from datasets import DatasetDict

FIELDS = ("instruction", "input", "output")
Placed = tuple[str, Row]  # the group that stays on one side of the split, and the row


def write(
    folder: Path, spec: DataSpec, source: AnySource, corpus: Corpus, progress: Progress
) -> dict[str, Any]:
    """Writes one Parquet file a split; returns their part of the manifest."""
    progress("reading instructions", 0, None)
    unanswered = dict.fromkeys(corpus.splits, 0)

    def placed(part: str) -> Iterator[Placed]:
        for where, row in numbered(corpus.splits[part], part):
            for made in _rows(row, source, f"source {spec.source!r}, {where}"):
                if not made["output"].strip():
                    unanswered[part] += 1
                elif in_slice(group := _group(row, made), spec):
                    yield group, made

    if "validation" in corpus.splits:
        refuse_fraction(spec)
        train = [row for _, row in islice(placed("train"), spec.max_documents)]
        held_out = [row for _, row in islice(placed("validation"), spec.validation_documents)]
    else:
        held_out, train = _held_out(placed("train"), spec)
    return {
        "fields": list(FIELDS),
        "unanswered": unanswered,
        "splits": write_parts(folder, spec, {"train": train, "validation": held_out}),
    }


def load_instructions(data_dir: str | Path) -> tuple[DatasetDict, Row]:
    """Opens what ``prepare`` made of an instruction source.

    Returns:
        Splits ``train`` and ``validation`` with columns ``instruction``, ``input`` and ``output``;
        the manifest.
    """
    return load_parts(Path(data_dir), "instruction")


def _held_out(placed: Iterable[Placed], spec: DataSpec) -> tuple[list[Row], list[Row]]:
    """Held-out and training rows: whole groups, drawn by the seed, each row once."""
    groups: dict[str, dict[str, Row]] = {}
    for group, row in placed:
        groups.setdefault(group, {})[canonical_json(row)] = row
    parts = hold_out(groups, spec)
    held_out, train = ([row for name in part for row in groups[name].values()] for part in parts)
    return held_out, train


def _group(row: Row, made: Row) -> str:
    """What must not stand on both sides of the split: a module's rows, else rows of one prompt."""
    return str(row.get("module") or canonical_json([made["instruction"], made["input"]]))


def _rows(row: Row, source: AnySource, where: str) -> Iterator[Row]:
    """The row under our names; one for each of its ``instances``, where the source has such."""
    fields = dict(source.fields)
    nested = fields.pop("instances", None)
    if nested is None:
        yield _row(row, fields, source, where)
        return
    instances = row.get(nested)
    if not isinstance(instances, list) or not instances:
        raise UserError(f"{where}: the field {nested!r} holds no instances")
    for number, instance in enumerate(instances, 1):
        fields |= {"input": "input", "output": "output"}  # their names in Self-Instruct's files
        yield _row({**row, **instance}, fields, source, f"{where}, instance {number}")


def _row(row: Row, fields: dict[str, str], source: AnySource, where: str) -> Row:
    """One row, each of its texts checked."""
    made = {"input": ""} | {role: row.get(official) for role, official in fields.items()}
    made["input"] = made["input"] or ""
    for role in FIELDS:
        name, text = fields.get(role, role), made[role]
        if text is None:
            raise UserError(f"{where}: the field {name!r} is missing")
        if not isinstance(text, str):
            raise UserError(f"{where}: the field {name!r} is no text but {text!r}")
        may_be_empty = role == "input" or (role == "output" and source.leave_out_unanswered)
        if not text.strip() and not may_be_empty:
            hint = ", or set 'leave_out_unanswered: true' for its source in data/sources.yaml"
            how = hint if role == "output" else ""
            raise UserError(f"{where}: the field {name!r} is empty: correct the row{how}")
    return {role: made[role] for role in FIELDS}
