"""Token shards: documents one after another, each closed by the end-of-document id, no padding.

A split is a sequence of files of raw little-endian integers. Every file but the last holds a whole
number of rows of ``sequence_length`` tokens, so a row never crosses files. The last, incomplete row
of a split is kept in the file and left out when training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

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
) -> Iterator[np.ndarray]:
    """Token ids of each document with its end mark, in order.

    Text that looks like a special token (``</s>``) is ordinary text here, so that only a
    document's end gives the end mark.

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
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
            ids = np.asarray([*encoding.ids, end], dtype=np.int64)
            if ids.max() >= vocab_size:
                raise UserError(
                    f"the tokenizer gave the id {ids.max()}, but its vocabulary has only "
                    f"{vocab_size} entries: tokenizer files do not belong together"
                )
            yield ids


class ShardWriter:
    """Writes one split as numbered files, and counts what goes in."""

    def __init__(self, folder: Path, split: str, vocab_size: int, sequence_length: int) -> None:
        self.folder, self.split = folder, split
        self.dtype = dtype_for(vocab_size)
        self.capacity = max(SHARD_TOKENS // sequence_length, 1) * sequence_length
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        self.documents = 0
        self.shards: list[dict[str, Any]] = []
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()

    def add(self, ids: np.ndarray) -> None:
        """Appends one document."""
        self.documents += 1
        self.counts += np.bincount(ids, minlength=len(self.counts))
        while len(ids):
            if self._file is None:
                self._start()
            shard = self.shards[-1]
            part, ids = np.split(ids, [self.capacity - shard["tokens"]])
            content = part.astype(self.dtype).tobytes()
            self._file.write(content)
            self._digest.update(content)
            shard["tokens"] += len(part)
            if shard["tokens"] == self.capacity:
                self._finish()

    def close(self) -> dict[str, Any]:
        """Ends the last file; returns the split's part of the manifest."""
        if self._file is not None:
            self._finish()
        tokens = sum(shard["tokens"] for shard in self.shards)
        return {"documents": self.documents, "tokens": tokens, "shards": self.shards}

    def _start(self) -> None:
        name = f"{self.split}-{len(self.shards):05d}.bin"
        self._file = (self.folder / name).open("wb")
        self._digest = hashlib.sha256()
        self.shards.append({"file": name, "tokens": 0})

    def _finish(self) -> None:
        self._file.close()
        self._file = None
        self.shards[-1]["sha256"] = self._digest.hexdigest()


def write_split(
    folder: Path,
    split: str,
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerFast,
    sequence_length: int,
    progress: Callable[[str, int, int | None], None],
) -> tuple[dict[str, Any], np.ndarray]:
    """Tokenizes and writes one split.

    Returns:
        Its part of the manifest, and how often each id occurs, shape (vocabulary,).
    """
    vocab_size = len(tokenizer)
    writer = ShardWriter(folder, split, vocab_size, sequence_length)
    digest = hashlib.sha256()

    def seen(texts: Iterable[str]) -> Iterator[str]:
        for text in texts:
            digest.update(text.encode() + b"\0")
            yield text

    for ids in encode(tokenizer, seen(texts), vocab_size):
        writer.add(ids)
        progress(f"writing {split} tokens", writer.documents, None)
    summary = writer.close()
    summary["rows"] = summary["tokens"] // sequence_length
    summary["text_sha256"] = digest.hexdigest()
    return summary, writer.counts


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
