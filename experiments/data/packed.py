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
import json
import os
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.data.packages import Progress, text_hash
from experiments.data.tokenizer import end_of_document
from experiments.errors import UserError
from experiments.files import write_atomic

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SHARD_TOKENS = 2**27  # 256 MB of uint16
BATCH = 512  # documents tokenized at once
SAVE_EVERY = 64  # batches between two marks that a killed preparation goes on from
MARK = ".mark.json"


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The narrowest unsigned type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def encode(tokenizer: PreTrainedTokenizerFast, texts: list[str], vocab_size: int) -> np.ndarray:
    """Tokenizes documents, in parallel.

    Text that looks like a special token (``</s>``) is ordinary text here, so that only a
    document's end gives the end mark.

    Returns:
        Their ids one after another with an end mark behind each.

    Raises:
        UserError: an id does not fit the vocabulary.
    """
    end = end_of_document(tokenizer)
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True
    encoded = backend.encode_batch_fast(texts, add_special_tokens=False)
    ids = np.array([i for document in encoded for i in (*document.ids, end)], dtype=np.int64)
    if ids.max() >= vocab_size:
        raise UserError(
            f"the tokenizer gave the id {ids.max()}, but its vocabulary has only {vocab_size} "
            f"entries: its files do not belong together"
        )
    return ids


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
    """Writes one split as numbered files, and can go on where a killed process left off.

    Attributes:
        documents: their number so far.
        shards: name and tokens of each file.
        counts: how often each id occurs (padding not counted), shape (vocabulary,).
        digest: of the texts so far; see :meth:`read`.
    """

    def __init__(self, folder: Path, split: str, vocab_size: int, sequence_length: int) -> None:
        self.folder, self.split = folder, split
        self.dtype = dtype_for(vocab_size)
        self.capacity = max(SHARD_TOKENS // sequence_length, 1) * sequence_length
        self.documents = 0
        self.shards: list[dict[str, Any]] = []
        self.counts = np.zeros(vocab_size, dtype=np.int64)
        self.digest = ""

    def read(self, texts: list[str]) -> None:
        """Takes documents into the digest: for each, the hash of the digest so far and its text."""
        for text in texts:
            self.digest = text_hash((self.digest, text))
        self.documents += len(texts)

    def add(self, ids: np.ndarray, real: np.ndarray) -> None:
        """Appends the ids of the documents read last; ``real`` are those that are not padding."""
        self.counts += np.bincount(real, minlength=len(self.counts))
        while len(ids):
            if not self.shards or self.shards[-1]["tokens"] == self.capacity:
                self.shards.append(
                    {"file": f"{self.split}-{len(self.shards):05d}.bin", "tokens": 0}
                )
            shard = self.shards[-1]
            part, ids = np.split(ids, [self.capacity - shard["tokens"]])
            with (self.folder / shard["file"]).open("ab") as file:
                file.write(part.astype(self.dtype).tobytes())
            shard["tokens"] += len(part)

    @property
    def _mark(self) -> Path:
        return self.folder / f"{self.split}{MARK}"

    def save(self) -> None:
        """Marks how far the split has come, for :meth:`restore`."""
        state = {"documents": self.documents, "shards": self.shards, "digest": self.digest}
        state["counts"] = {int(i): int(self.counts[i]) for i in np.flatnonzero(self.counts)}
        write_atomic(self._mark, json.dumps(state))

    def restore(self, batches: Iterator[list[str]]) -> bool:
        """Goes to the mark, if there is one, past the batches that are written already.

        Args:
            batches: of the source, from its beginning. They are read, not tokenized.

        Returns:
            False where the source does not begin with the texts that were written: what is there
            is of no use, and the batches are used up.
        """
        if not self._mark.is_file():
            self.cut()
            return True
        state = json.loads(self._mark.read_text())
        while self.documents < state["documents"] and (batch := next(batches, None)):
            self.read(batch)
        if (self.documents, self.digest) != (state["documents"], state["digest"]):
            return False
        self.shards = state["shards"]
        self.counts[list(map(int, state["counts"]))] = list(state["counts"].values())
        self.cut()
        return True

    def cut(self) -> None:
        """Takes away what was written beyond ``shards``."""
        known = {shard["file"]: shard["tokens"] for shard in self.shards}
        for file in self.folder.glob(f"{self.split}-*.bin"):
            if file.name in known:
                os.truncate(file, known[file.name] * self.dtype.itemsize)
            else:
                file.unlink()

    def summary(self, sequence_length: int) -> dict[str, Any]:
        """The split's part of the manifest; digests are of the files as they lie there."""
        shards = [shard | {"sha256": _sha256(self.folder / shard["file"])} for shard in self.shards]
        tokens = sum(shard["tokens"] for shard in shards)
        return {
            "documents": self.documents,
            "tokens": tokens,
            "shards": shards,
            "rows": tokens // sequence_length,
            "padding": tokens - int(self.counts.sum()),
            "text_sha256": self.digest,
        }


def write_split(
    folder: Path,
    split: str,
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerFast,
    sequence_length: int,
    layout: str,
    progress: Progress,
) -> tuple[dict[str, Any], np.ndarray]:
    """Tokenizes and writes one split; goes on after the last mark that a killed process left.

    Returns:
        Its part of the manifest, and how often each id occurs (padding not counted), shape
        (vocabulary,).
    """
    make = partial(ShardWriter, folder, split, len(tokenizer), sequence_length)
    writer, batches = make(), in_batches(texts)
    if not writer.restore(batches):
        progress(f"the {split} texts have changed: writing them anew", 0, None)
        writer, batches = make(), in_batches(texts)
        writer.cut()
    for number, batch in enumerate(batches, 1):
        writer.read(batch)
        ids = encode(tokenizer, batch, len(tokenizer))
        rows, real = one_a_row(ids, sequence_length) if layout == "papers" else (ids, ids)
        writer.add(rows.ravel(), real)
        if number % SAVE_EVERY == 0:
            writer.save()
        progress(f"writing {split} tokens", writer.documents, None)
    writer.save()
    return writer.summary(sequence_length), writer.counts


def in_batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Some hundred documents at a time."""
    texts = iter(texts)
    while batch := list(islice(texts, BATCH)):
        yield batch


def _sha256(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


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
