"""Which documents are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import ceil

from experiments.errors import UserError
from experiments.spec import DataSpec

DEFAULT_FRACTION = 0.05
TUNING_SHARE = 0.2


def split_documents(
    parts: Mapping[str, Iterable[str]], spec: DataSpec
) -> tuple[list[str], Iterable[str]]:
    """Held-out documents, and documents to train on; no text is in both.

    A source with a validation part of its own gives the first ``validation_documents`` of it, and
    its training part in its own order, as a stream. Any other source goes through
    :func:`hold_out`. Either way training sees at most ``max_documents``.

    Args:
        parts: texts of ``train`` and perhaps ``validation``.
        spec: says how many.

    Raises:
        UserError: a part is empty, or a fraction is asked of a source with its own split.
    """
    train: Iterable[str]
    if "validation" in parts:
        refuse_fraction(spec)
        held_out = list(islice(parts["validation"], spec.validation_documents))
        train = Remaining(parts["train"], held_out, spec.max_documents)
    else:
        held_out, train = hold_out(parts["train"], spec)
    for name, texts in (("validation", held_out), ("training", train)):
        if next(iter(texts), None) is None:
            raise UserError(f"source {spec.source!r}: no documents left for the {name} part")
    return held_out, train


def hold_out(items: Iterable[str], spec: DataSpec) -> tuple[list[str], list[str]]:
    """Held-out items and the rest (at most ``max_documents``), each once, drawn by the seed.

    They are held in memory and ordered by the hash of (``seed``, item), so that neither the order
    of the source nor the machine decides.
    """
    ordered = in_seeded_order(set(items), spec.seed)
    fraction = spec.validation_fraction or DEFAULT_FRACTION
    number = spec.validation_documents or ceil(fraction * len(ordered))
    return ordered[:number], ordered[number:][: spec.max_documents]


def in_seeded_order(texts: Iterable[str], seed: int) -> list[str]:
    """Texts in an order that looks random and is the same on every machine."""
    return sorted(texts, key=lambda text: hashlib.sha256(f"{seed}\0{text}".encode()).digest())


def in_slice(item: str, spec: DataSpec) -> bool:
    """Whether a document belongs to the slice that is asked for.

    The hash of the document alone decides, so that the slices are the same and disjoint in every
    split, for every seed, and in a stream whose length nobody knows.
    """
    if spec.slice is None:
        return True
    digest = hashlib.sha256(f"slice\0{item}".encode()).digest()
    tuning = int.from_bytes(digest[:8], "big") < TUNING_SHARE * 2**64
    return tuning == (spec.slice == "tuning")


def refuse_fraction(spec: DataSpec) -> None:
    """An official split is taken as it is, or its first rows; a fraction of it means nothing."""
    if spec.validation_fraction:
        raise UserError(
            f"source {spec.source!r} has its own validation part: give 'validation_documents' "
            f"or nothing, not 'validation_fraction'"
        )


class Remaining:
    """The first texts that are not among some others; can be gone through again."""

    def __init__(self, texts: Iterable[str], others: Iterable[str], limit: int | None) -> None:
        self.texts, self.limit = texts, limit
        self.others = {self._key(text) for text in others}

    def __iter__(self) -> Iterator[str]:
        return islice((t for t in self.texts if self._key(t) not in self.others), self.limit)

    @staticmethod
    def _key(text: str) -> bytes:
        return hashlib.blake2b(text.encode(), digest_size=16).digest()
