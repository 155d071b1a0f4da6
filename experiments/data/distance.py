"""How far one corpus is from another, by the word pieces that they use."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from experiments.data.packed import encode, in_batches
from experiments.data.readers import open_source
from experiments.data.sources import source_of
from experiments.data.tokenizer import end_of_document, make_tokenizer
from experiments.spec import DataSpec, TokenizerSpec

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def distance(corpus: DataSpec, reference: DataSpec, tokenizer: Path) -> dict[str, float]:
    """Compares the training documents of two specifications.

    Args:
        corpus: the text in question.
        reference: the text it stands in for, for example C4.
        tokenizer: folder of the tokenizer whose pieces are counted.

    Returns:
        ``kl``: see :func:`divergence`; ``megabytes`` and ``tokens`` of the corpus.
    """
    loaded = make_tokenizer(TokenizerSpec(kind="local", path=str(tokenizer)), ())
    texts = list(_texts(corpus))
    counts = piece_counts(loaded, texts)
    return {
        "kl": divergence(piece_counts(loaded, _texts(reference)), counts),
        "megabytes": sum(len(text.encode()) for text in texts) / 1e6,
        "tokens": float(counts.sum()),
    }


def piece_counts(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> np.ndarray:
    """How often each id occurs, shape (vocabulary,); end marks are not counted."""
    size = len(tokenizer)
    counts = np.zeros(size, dtype=np.int64)
    for batch in in_batches(texts):
        counts += np.bincount(encode(tokenizer, batch, size), minlength=size)
        counts[end_of_document(tokenizer)] -= len(batch)
    return counts


def divergence(reference: np.ndarray, corpus: np.ndarray) -> float:
    """Kullback-Leibler divergence of a corpus from a reference, in nats per token.

    ``sum(p * log(p / q))`` over the pieces of the reference, where ``p`` are the reference's
    frequencies and ``q`` the corpus's with one added to each count, so that it is finite.
    """
    p = reference / reference.sum()
    q = (corpus + 1) / (corpus.sum() + len(corpus))
    used = p > 0
    return float(np.sum(p[used] * np.log(p[used] / q[used])))


def _texts(spec: DataSpec) -> list[str]:
    source = source_of(spec)
    rows = open_source(source, spec).splits["train"]
    return [row[source.fields["text"]] for row in rows][: spec.max_documents]
