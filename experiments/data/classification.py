"""Labelled rows: from a source's official fields to ``text``, ``text_pair`` and ``label``."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.data.packages import Progress, Row
from experiments.data.parts import load_parts, write_parts
from experiments.data.readers import Corpus, numbered, open_source
from experiments.data.sources import AnySource, PackageSource, source_of
from experiments.data.splits import hold_out, in_seeded_order, in_slice, refuse_fraction
from experiments.errors import UserError
from experiments.files import canonical_json
from experiments.spec import DataSpec

if TYPE_CHECKING:
    from datasets import DatasetDict

# What would give a paragraph's library away by name, with what hangs on it ("np.linalg.norm").
_LIBRARY_NAME = re.compile(
    r"\b(?:np|pd|sp|sklearn|scikit-learn|numpy|pandas|scipy|sympy|torch|pytorch)\b[\w.]*", re.I
)
REPLACEMENT = "it"
HIDDEN = -1  # what the hub puts in place of a label that is kept secret


def write(
    folder: Path,
    spec: DataSpec,
    source: AnySource,
    corpus: Corpus,
    progress: Progress,
) -> dict[str, Any]:
    """Writes one Parquet file a split; returns their part of the manifest."""
    progress("labelling rows", 0, None)
    if isinstance(source, PackageSource):
        make = _pair_rows if source.reader == "docstring_pairs" else _origin_rows
        held_out, train = make(corpus, spec, source)
    else:
        held_out, train = _labelled_rows(corpus, spec, source)
    further = _further_parts(corpus, spec, source)
    splits = write_parts(folder, spec, {"train": train, "validation": held_out, **further})
    return {
        "labels": source.labels,
        "fields": list(train[0]),
        "splits": splits,
        "unlabelled": [name for name, rows in further.items() if "label" not in rows[0]],
        "majority_accuracy": majority_accuracy(train, held_out) if source.labels else None,
    }


def majority_accuracy(train: list[Row], held_out: list[Row]) -> float:
    """Accuracy on held-out rows of always answering with the commonest training label."""
    commonest = Counter(row["label"] for row in train).most_common(1)[0][0]
    return sum(row["label"] == commonest for row in held_out) / len(held_out)


def load_classification(data_dir: str | Path) -> tuple[DatasetDict, list[str] | None, Row]:
    """Opens what ``prepare`` made of a classification source.

    Returns:
        Splits ``train``, ``validation`` and further parts with columns ``text``, perhaps
        ``text_pair``, and ``label`` (class number, or a float for a regression; not in the parts
        that the manifest calls ``unlabelled``); the names of the classes (``None`` for a
        regression); the manifest.
    """
    splits, manifest = load_parts(Path(data_dir), "classification")
    return splits, manifest["labels"], manifest


def _labelled_rows(
    corpus: Corpus, spec: DataSpec, source: AnySource
) -> tuple[list[Row], list[Row]]:
    """Held-out and training rows of a source that has labels of its own.

    An official split is taken as it is, in its order; otherwise rows are held out by the seed.
    """

    def rows_of(part: str, limit: int | None = None) -> list[Row]:
        made = (row for _, row in _labelled(corpus.splits[part], part, spec.source, source))
        return list(islice((row for row in made if in_slice(canonical_json(row), spec)), limit))

    if "validation" in corpus.splits:
        refuse_fraction(spec)
        return rows_of("validation", spec.validation_documents), rows_of(
            "train", spec.max_documents
        )
    held_out, train = hold_out(map(canonical_json, rows_of("train")), spec)
    return [json.loads(row) for row in held_out], [json.loads(row) for row in train]


def _further_parts(corpus: Corpus, spec: DataSpec, source: AnySource) -> dict[str, list[Row]]:
    """Rows of the parts beside ``train`` and ``validation``, and of the sources to predict.

    Parts with labels are limited and sliced as the validation part is; where all labels are hidden,
    every row is kept, without its label.

    Raises:
        UserError: a declared part is not there, or only some of its labels are hidden.
    """
    found = {}
    if "validation" in corpus.splits:
        for part in (name for name in source.splits if name not in ("train", "validation")):
            if part not in corpus.splits:
                raise UserError(f"source {spec.source!r}: no file of {source.splits[part]!r}")
            found[part] = _part(corpus.splits[part], part, spec, spec.source, source)
    for name in spec.predict or []:
        other = source_of(DataSpec(source=name))
        if other.labels != source.labels or "train" in other.splits:
            raise UserError(
                f"data.predict: source {name!r} has not the labels of {spec.source!r}, or rows to "
                f"train on"
            )
        for part, rows in open_source(other, DataSpec(source=name)).splits.items():
            found[part] = _part(rows, part, spec, name, other)
    return found


def _part(
    rows: Iterable[Row], part: str, spec: DataSpec, name: str, source: AnySource
) -> list[Row]:
    """Rows of a further part, with all their labels or with none."""
    made = list(_labelled(rows, part, name, source, hidden=True))
    first = next((where for where, row in made if "label" not in row), None)
    if first is None:
        chosen = (row for _, row in made if in_slice(canonical_json(row), spec))
        return list(islice(chosen, spec.validation_documents))
    for where, row in made:
        if "label" in row:
            raise UserError(f"{where}: a label, but that of {first} is hidden ({HIDDEN})")
    return [row for _, row in made]


def _labelled(
    rows: Iterable[Row], part: str, name: str, source: AnySource, hidden: bool = False
) -> Iterator[tuple[str, Row]]:
    """Rows under our names with the words that say where each stands, their fields checked.

    Args:
        rows: with the official fields.
        part: they are of.
        name: of the source.
        source: its entry.
        hidden: whether a row may hide its label; it then comes without one.
    """
    for place, row in numbered(rows, part):
        where = f"source {name!r}, {place}"
        made = {role: row[official] for role, official in source.fields.items()}
        for role in made.keys() - {"label"}:
            if not isinstance(made[role], str):
                raise UserError(f"{where}: the field {source.fields[role]!r} holds no text")
        label = made.pop("label")
        if label != HIDDEN:
            made["label"] = _label(label, source.labels, where)
        elif not hidden:
            raise UserError(
                f"{where}: the label is hidden ({HIDDEN}): an unlabelled part can neither be "
                f"trained nor scored on"
            )
        yield where, made


def _label(label: Any, names: list[str] | None, where: str) -> int | float:
    """The number of a class, or the value of a regression."""
    if names is None:
        if not isinstance(label, int | float) or not math.isfinite(label):
            raise UserError(f"{where}: the label {label!r} is no number")
        return float(label)
    if label in names:
        return names.index(label)
    if not isinstance(label, int) or not 0 <= label < len(names):
        raise UserError(
            f"{where}: the label {label!r} is neither a number from 0 to {len(names) - 1} nor one "
            f"of {names}"
        )
    return label


def _origin_rows(
    corpus: Corpus, spec: DataSpec, source: PackageSource
) -> tuple[list[Row], list[Row]]:
    """Paragraphs labelled by their library: split by module, then balanced.

    Names of libraries are taken out of the text; what then stands in two places is left out. Each
    class of a part keeps as many paragraphs as the smallest has, drawn by the seed.
    """
    documents = list(corpus.splits["train"])
    lines = {
        row["module"]: _LIBRARY_NAME.sub(REPLACEMENT, row["text"]).split("\n") for row in documents
    }
    library = {row["module"]: row["distribution"] for row in documents}
    times = Counter(line for module in lines.values() for line in module)

    def balanced(modules: Iterable[str]) -> list[Row]:
        by_class: dict[str, list[str]] = {name: [] for name in source.labels or []}
        for module in modules:
            by_class[library[module]] += [line for line in lines[module] if times[line] == 1]
        smallest = min(map(len, by_class.values()))
        label = {
            line: number
            for number, found in enumerate(by_class.values())
            for line in in_seeded_order(found, spec.seed)[:smallest]
        }
        return [{"text": line, "label": label[line]} for line in in_seeded_order(label, spec.seed)]

    modules = [module for module in library if in_slice(module, spec)]
    held_out, train = hold_out(modules, spec)
    return balanced(held_out), balanced(train)


def _pair_rows(
    corpus: Corpus, spec: DataSpec, source: PackageSource
) -> tuple[list[Row], list[Row]]:
    """Pairs of paragraphs: the second follows the first in its module (1), or does not (0).

    No paragraph stands in two pairs, and modules are split before pairs are made. The seed draws
    which half of a library's pairs exchange their second paragraphs, each with one of another
    module, so that neither the library nor a paragraph alone tells.
    """
    modules = {row["module"]: row for row in corpus.splits["train"]}

    def pairs(names: Iterable[str]) -> list[Row]:
        made: list[Row] = []
        for library in source.distributions:
            found = {}
            for name in (n for n in names if modules[n]["distribution"] == library):
                lines = modules[name]["text"].split("\n")
                found |= dict.fromkeys(zip(lines[::2], lines[1::2], strict=False), name)
            drawn = in_seeded_order(map(canonical_json, found), spec.seed)
            chosen = [tuple(json.loads(pair)) for pair in drawn]
            half = len(chosen) // 2
            apart, together = chosen[:half], chosen[half : 2 * half]
            apart.sort(
                key=found.__getitem__
            )  # stable: turned by the largest module, all meet others
            turn = max(Counter(found[pair] for pair in apart).values(), default=0)
            others = [*apart[turn:], *apart[:turn]]
            made += [{"text": a, "text_pair": b, "label": 1} for a, b in together]
            made += [
                {"text": own[0], "text_pair": other[1], "label": 0}
                for own, other in zip(apart, others, strict=True)
                if found[own] != found[other]
            ]
        rows = {canonical_json(row): row for row in made}
        return [rows[key] for key in in_seeded_order(rows, spec.seed)]

    held_out, train = hold_out([name for name in modules if in_slice(name, spec)], spec)
    return pairs(held_out), pairs(train)
