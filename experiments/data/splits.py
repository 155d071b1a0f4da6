"""Which documents are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from math import ceil

from experiments.errors import UserError
from experiments.spec import DataSpec

DEFAULT_FRACTION = 0.05


def split(parts: dict[str, Iterable[str]], spec: DataSpec) -> tuple[list[str], Iterable[str]]:
    """Held-out documents, and documents to train on; no text is in both.

    A source with a validation part of its own gives the first ``validation_documents`` of it,
    and its training part in its own order. Any other source is held in memory, ordered by the
    hash of (``seed``, text), and its first documents are held out. Either way training sees at
    most ``max_documents``.

    Args:
        parts: texts of ``train`` and perhaps ``validation``.
        spec: says how many.

    Raises:
        UserError: a part is empty, or a fraction is asked of a source with its own split.
    """
    if "validation" in parts:
        if spec.validation_fraction:
            raise UserError(
                f"source {spec.source!r} has its own validation part: give "
                f"'validation_documents' or nothing, not 'validation_fraction'"
            )
        held_out = list(islice(parts["validation"], spec.validation_documents))
        train: Iterable[str] = Remaining(parts["train"], set(held_out), spec.max_documents)
    else:
        documents = sorted(set(parts["train"]), key=lambda text: seeded_hash(spec.seed, text))
        fraction = spec.validation_fraction or DEFAULT_FRACTION
        number = spec.validation_documents or ceil(fraction * len(documents))
        held_out, train = documents[:number], documents[number:][: spec.max_documents]
    for name, texts in (("validation", held_out), ("training", train)):
        if next(iter(texts), None) is None:
            raise UserError(f"source {spec.source!r}: no documents left for the {name} part")
    return held_out, train


class Remaining:
    """The first texts that are not among some others; can be gone through again."""

    def __init__(self, texts: Iterable[str], others: set[str], limit: int | None) -> None:
        self.texts, self.others, self.limit = texts, others, limit

    def __iter__(self) -> Iterator[str]:
        return islice((text for text in self.texts if text not in self.others), self.limit)


def seeded_hash(seed: int, text: str) -> bytes:
    """A key that orders texts at random, the same on every machine."""
    return hashlib.sha256(f"{seed}\0{text}".encode()).digest()
