"""Token shards of one split, in one of two layouts.

``packed``: documents one after another, each closed by the end-of-document id, no padding. The
last, incomplete row of a split is kept in the file and left out when training.

``papers``: one document a row, as in the scripts of GaLore, GWT and COAP: its first tokens and the
end-of-document id, then padding. Padding is written as more end-of-document ids: text never gives
that id, so everything behind the first one is padding, and no tokenizer needs a padding token.

A split is a sequence of files of raw little-endian integers. Every file but the last holds a whole
number of rows of ``sequence_length`` tokens, so a row never crosses files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.data.packages import Progress
from experiments.data.tokenizer import end_of_document
from experiments.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHARD_TOKENS = 2**27  # 256 MB of uint16
BATCH = 512  # documents tokenized at once


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrowest unsigned type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def encode(
    tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], vocab_size: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Tokenizes documents, some hundred at a time.

    Text that looks like a special token (``</s>``) is ordinary text here, so that only a
    document's end gives the end mark.

    Yields:
        The number of documents, and their ids one after another with an end mark behind each.

    Raises:
        UserError: an id does not fit the vocabulary.
    """
    end = end_of_document(tokenizer)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    texts = iter(texts)
    while batch := list(islice(texts, BATCH)):
        encoded = backend.encode_batch_fast(batch, add_special_tokens=False)
        ids = np.array([i for document in encoded for i in (*document.ids, end)], dtype=np.int64)
        if ids.max() >= vocab_size:
            raise UserError(
                f"the tokenizer gave the id {ids.max()}, but its vocabulary has only {vocab_size} "
                f"entries: its files do not belong together"
            )
        yield len(batch), ids


def one_a_row(ids: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """The layout ``papers`` of some documents.

    Args:
        ids: documents one after another with an end mark behind each; the last id is the mark.
        length: of a row.

    Returns:
        Rows, shape (documents, length), cut to ``length - 1`` ids and the mark, or filled with
        marks; and what of it is text or its mark, not padding, one after another.
    """
    end = ids[-1]
    rows = []
    for document in np.split(ids, np.flatnonzero(ids == end)[:-1] + 1):
        row = np.full(length, end)
        kept = document[: length - 1]
        row[: len(kept)] = kept
        rows.append(row)
    padded = np.stack(rows)
    return padded, padded[~is_padding(padded, end)]


def is_padding(rows: np.ndarray, end: int) -> np.ndarray:
    """Where rows of the layout ``papers``, shape (..., length), hold padding: bool, same shape."""
    return np.cumsum(rows == end, axis=-1) > 1


class ShardWriter:
    """Writes one split as numbered files.

    Attributes:
        documents: their number.
        shards: name, tokens and digest of each file.
    """

    def __init__(self, folder: Path, split: str, vocab_size: int, sequence_length: int) -> None:
        self.folder, self.split = folder, split
        self.dtype = dtype_for(vocab_size)
        self.capacity = max(SHARD_TOKENS // sequence_length, 1) * sequence_length
        self.documents = 0
        self.shards: list[dict[str, Any]] = []

    def add(self, documents: int, ids: np.ndarray) -> None:
        """Appends the ids of some documents."""
        self.documents += documents
        while len(ids):
            if not self.shards or self.shards[-1]["tokens"] == self.capacity:
                name = f"{self.split}-{len(self.shards):05d}.bin"
                self.shards.append({"file": name, "tokens": 0, "sha256": hashlib.sha256()})
            shard = self.shards[-1]
            part, ids = np.split(ids, [self.capacity - shard["tokens"]])
            content = part.astype(self.dtype).tobytes()
            with (self.folder / shard["file"]).open("ab") as file:
                file.write(content)
            shard["sha256"].update(content)
            shard["tokens"] += len(part)

    def summary(self) -> dict[str, Any]:
        """The split's part of the manifest."""
        shards = [{**shard, "sha256": shard["sha256"].hexdigest()} for shard in self.shards]
        tokens = sum(shard["tokens"] for shard in shards)
        return {"documents": self.documents, "tokens": tokens, "shards": shards}


def write_split(
    folder: Path,
    split: str,
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerFast,
    sequence_length: int,
    layout: str,
    progress: Progress,
) -> tuple[dict[str, Any], np.ndarray]:
    """Tokenizes and writes one split.

    Returns:
        Its part of the manifest, and how often each id occurs (padding not counted), shape
        (vocabulary,).
    """
    writer = ShardWriter(folder, split, len(tokenizer), sequence_length)
    digest = hashlib.sha256()
    counts = np.zeros(len(tokenizer), dtype=np.int64)

    def hashed() -> Iterator[str]:
        for text in texts:
            digest.update(text.encode() + b"\0")
            yield text

    for documents, ids in encode(tokenizer, hashed(), len(tokenizer)):
        rows, real = one_a_row(ids, sequence_length) if layout == "papers" else (ids, ids)
        writer.add(documents, rows.ravel())
        counts += np.bincount(real, minlength=len(counts))
        progress(f"writing {split} tokens", writer.documents, None)
    summary = writer.summary()
    summary["rows"] = summary["tokens"] // sequence_length
    summary["padding"] = summary["tokens"] - int(counts.sum())
    summary["text_sha256"] = digest.hexdigest()
    return summary, counts


def unigram_loss(train_counts: np.ndarray, target_counts: np.ndarray) -> float:
    """Cross-entropy of targets under the training tokens' frequencies, in nats per token.

    One is added to each frequency, so that a token that training never saw has a finite loss:
    ``-mean(log((count + 1) / (tokens + vocabulary)))``.

    Args:
        train_counts: how often each id occurs in training, shape (vocabulary,).
        target_counts: how often each is what a model is asked to predict, shape (vocabulary,).
    """
    probability = (train_counts + 1) / (train_counts.sum() + len(train_counts))
    return float(-(target_counts @ np.log(probability)) / target_counts.sum())
